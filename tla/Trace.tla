------------------------------- MODULE Trace -------------------------------
(* Is a history recorded by a real node, or by the simulator, a behaviour of  *)
(* Calls? TraceData, generated from the files by `make trace`, defines Runs:  *)
(* one sequence of entries per history, in the order of events. One entry is  *)
(* one step and contains every choice of that step, so nothing is left to     *)
(* search. A history is accepted if TLC reaches its end. TLC stops at the     *)
(* first entry that Calls does not allow.                                     *)
(*                                                                            *)
(* A history differs from Calls: time is in microseconds and passes equally   *)
(* for all clocks. Several actors share a node, its log and its crashes.      *)
(* Messages inside a node need no gate. One action of Calls may correspond to *)
(* several entries, for example when a stopped turn cancels its calls one by  *)
(* one. A message may arrive repeatedly.                                      *)
EXTENDS Calls, TraceData, Bags

CONSTANTS Nodes
VARIABLES
  now,    \* time since the beginning of the history
  at,     \* last activation of each actor: node, cell and epoch
  sure,   \* per node: position up to which its log is durable
  log,    \* per node: its appends that are not durable, each with its position and the state after it
  age,    \* time at which the state of an actor in `disk` was current
  seen,   \* what earlier entries permit later ones to do; the section on causes explains it
  r, l    \* number of the history; its next entry
trace == <<vars, now, at, sure, log, age, seen, r, l>>
here  == <<now, at, sure, log, age>>

\* In an action, TLC takes each true side of a disjunction as a step of its own, and so evaluates the rest
\* of the action repeatedly. It evaluates a condition P once in Is(P).
Is(P) == P = TRUE

\* TLC finds an element of a sequence by its index, but searches the domain of any other function.
Array(f) == f \o <<>>

\* ------------------------------------------------- definitions in place of those of Calls
E   == Runs[r][l]
TraceIds == 1..CallsMax
LeftMin == 1000                                 \* minimum time of a call in microseconds
Cut == 3                                        \* clocks are cut to microseconds twice: a clock may be early by this much
TraceDue(left)    == left <= Cut
TraceWithin(t, all) == t <= all + Cut
TraceSame(a, b)   == IF b \in Recursive[r] THEN a = b ELSE Agent[a] = Agent[b]
TraceFresh(c)     == call[c].st = "free"        \* IDs lost in a crash are never reused
TraceWork(c, att) == {}                         \* effects of tools and work have entries of their own
TraceEnds         == Words                      \* outcomes of a call: "ok", or a reason
\* A call gets its chain and its callee when it is made, so they are checked while it waits.
TraceUsed         == {c \in Ids : Pending(c)}
\* The bounds of Calls, evaluated for the actors that have such a call and not for all actors.
Most(S, of(_), most) == \A c \in S : Cardinality({d \in S : of(d) = of(c)}) <= most
Callee(c)            == call[c].to
TraceOutstanding     == Most({c \in Ids : Pending(c) /\ call[c].par # 0}, Caller, OutMax)
TraceMailbox         == Most({c \in Ids : srv[c].st = "queued"}, Callee, BoxMax)
TraceExclusive       == Most({c \in Ids : Holds(c)}, Callee, 1)
\* A message is present if it was sent between nodes, or produced inside the node where it is received.
Here(m) == m \in net \/ m \in out[E.n]
\* A client in the cell of its actor repeats its request without a message, even after a cancel. If
\* the actor is reactivated and knows the outcome, the client gets the outcome without a message.
AsksAgain(m)  == m.k = "req" /\ call[m.c].par = 0
                 /\ IF Pending(m.c) THEN m.t <= call[m.c].all
                    ELSE call[m.c].out = "cancel" /\ \E q \in net \cup out[E.n] : q.c = m.c /\ q.k = "req" /\ m.t <= q.t
ToldAgain(m)  == m.k \in Words /\ call[m.c].par = 0 /\ srv[m.c].st = "done" /\ srv[m.c].res = m.k
                 /\ call[m.c].to \notin down /\ at[call[m.c].to].n = E.n
TraceTake(m, keep) == Is(Here(m) \/ AsksAgain(m) \/ ToldAgain(m)) /\ flt' = flt
TracePost(rest, a, ms) ==
  /\ net' = IF a = Client THEN rest \cup ms ELSE rest
  /\ out' = IF a = Client THEN out ELSE [out EXCEPT ![at[a].n] = @ \cup ms]
  /\ eff' = eff

Said(c, ks) == {m \in net \cup out[E.n] : m.c = c /\ m.k \in ks}
Near(x, y)  == x <= y + Cut /\ y <= x + Cut
Less(x, y)  == IF x > y THEN x - y ELSE 0
NothingElse == UNCHANGED here
Nothing     == UNCHANGED <<vars, here>>
Speak(ms)   == out' = [out EXCEPT ![E.n] = @ \cup ms] /\ UNCHANGED <<call, srv, disk, net, eff, down, flt>> /\ NothingElse

\* ------------------------------------------------------------------------- time
CallAge(k, d) == IF k.st # "wait" THEN k ELSE [k EXCEPT !.h = Less(@, d), !.left = Less(@, Less(d, k.h))]
SrvAge(cs, s, c, d) ==
  IF s.st \in {"none", "done"} THEN s
  ELSE LET rests == {s.h} \cup {cs[k].h : k \in {k \in Ids : cs[k].par = c /\ cs[k].st = "wait"}}
           still == CHOOSE t \in rests : \A u \in rests : t >= u
       IN [s EXCEPT !.h = Less(@, d), !.left = Less(@, Less(d, still))]

Pass ==
  /\ now' = now + E.d
  /\ call' = Array([c \in Ids |-> CallAge(call[c], E.d)])
  /\ srv'  = Array([c \in Ids |-> SrvAge(call, srv[c], c, E.d)])
  /\ UNCHANGED <<disk, out, net, eff, down, flt, at, sure, log, age>>

\* ------------------------------------------------------------ nodes, logs, actors
Owner(cs, c)  == IF cs[c].par = 0 THEN Client ELSE cs[cs[c].par].to
Live(n)       == {a \in Agents : at[a].n = n}
\* Replaces the state of the actors in A by that in old, with the clocks advanced by d.
Mix(A, old, d) ==
  /\ call' = Array([c \in Ids |-> IF call[c].st # "free" /\ Owner(call, c) \in A THEN CallAge(old.call[c], d) ELSE call[c]])
  /\ srv'  = Array([c \in Ids |-> IF call[c].st # "free" /\ call[c].to \in A THEN SrvAge(old.call, old.srv[c], c, d) ELSE srv[c]])
Last(n, pos)  == {i \in 1..Len(log[n]) : log[n][i].pos <= pos}
Top(S)        == CHOOSE i \in S : \A j \in S : i >= j
After(n, pos) == SelectSeq(log[n], LAMBDA s : s.pos > pos)

\* The end of the log of a node.
LogEnd(n) == IF log[n] = <<>> THEN sure[n] ELSE log[n][Len(log[n])].pos

Appended ==
  /\ E.wrote > 0 /\ E.pos = LogEnd(E.n) + E.wrote
  /\ log' = [log EXCEPT ![E.n] = Append(@, [pos |-> E.pos, who |-> Live(E.n), t |-> now, call |-> call, srv |-> srv])]
  /\ UNCHANGED <<vars, now, at, sure, age>>

\* The log is durable up to a position: disk becomes the state after the last append before it.
Durable(n, pos) ==
  IF Last(n, pos) = {} THEN UNCHANGED <<disk, age>>
  ELSE LET s == log[n][Top(Last(n, pos))]
           A == s.who \cap Live(n)
       IN /\ disk' = [call |-> Array([c \in Ids |-> IF s.call[c].st # "free" /\ Owner(s.call, c) \in A THEN s.call[c] ELSE disk.call[c]]),
                      srv  |-> Array([c \in Ids |-> IF s.call[c].st # "free" /\ s.call[c].to \in A THEN s.srv[c] ELSE disk.srv[c]])]
          /\ age' = [a \in Agents |-> IF a \in A THEN s.t ELSE age[a]]
Synced ==
  /\ sure[E.n] < E.pos /\ Is(\E i \in 1..Len(log[E.n]) : log[E.n][i].pos = E.pos)
  /\ Durable(E.n, E.pos)
  /\ log' = [log EXCEPT ![E.n] = After(E.n, E.pos)]
  /\ sure' = [sure EXCEPT ![E.n] = Max(@, E.pos)]
  /\ UNCHANGED <<call, srv, out, net, eff, down, flt, now, at>>

\* A node crashes: its actors get the state that the disk has kept of the log.
Crashed ==
  LET A    == Live(E.n)
      kept == Last(E.n, E.pos)
      olds == [a \in A |-> IF kept # {} /\ a \in log[E.n][Top(kept)].who
                           THEN [call |-> log[E.n][Top(kept)].call, srv |-> log[E.n][Top(kept)].srv, t |-> log[E.n][Top(kept)].t]
                           ELSE [call |-> disk.call, srv |-> disk.srv, t |-> age[a]]]
  IN /\ sure[E.n] <= E.pos /\ E.pos <= LogEnd(E.n)
     /\ call' = Array([c \in Ids |-> IF call[c].st # "free" /\ Owner(call, c) \in A
                                     THEN LET o == olds[Owner(call, c)] IN CallAge(o.call[c], now - o.t) ELSE call[c]])
     /\ srv'  = Array([c \in Ids |-> IF call[c].st # "free" /\ call[c].to \in A
                                     THEN LET o == olds[call[c].to] IN SrvAge(o.call, o.srv[c], c, now - o.t) ELSE srv[c]])
     /\ Durable(E.n, E.pos)
     /\ log'  = [log EXCEPT ![E.n] = <<>>]
     /\ out'  = [out EXCEPT ![E.n] = {}]
     /\ sure' = [sure EXCEPT ![E.n] = E.pos]
     /\ down' = down \cup A
     /\ flt'  = [flt EXCEPT !.crash = 1]
     /\ UNCHANGED <<net, eff, now, at>>

\* A cell restarts, but not its node: nothing is lost, and its actors are reactivated one by one.
Restarted ==
  /\ down' = down \cup {a \in Agents : at[a].n = E.n /\ at[a].c = E.cell}
  /\ UNCHANGED <<call, srv, disk, out, net, eff, flt, now, at, sure, log, age>>

\* An actor is activated. On another node than before, it has the state on disk.
Activated ==
  /\ at' = [at EXCEPT ![E.a] = [n |-> E.n, c |-> E.cell, e |-> E.e]]
  /\ E.e >= at[E.a].e /\ (at[E.a].n = E.n => E.a \in down)
  /\ down' = down \ {E.a}
  /\ IF at[E.a].n \in {"", E.n} THEN UNCHANGED <<call, srv>> ELSE Mix({E.a}, disk, now - age[E.a])
  /\ UNCHANGED <<disk, out, net, eff, flt, now, sure, log, age>>
Deactivated ==
  /\ E.a \notin down /\ down' = down \cup {E.a}
  /\ UNCHANGED <<call, srv, disk, out, net, eff, flt, now, at, sure, log, age>>

\* ---------------------------------------------------------------- calls and turns
\* A call that the cell of its caller refuses. The reason is the first limit that it violates; a budget
\* is not modelled.
FirstLimit(a, chain, b) ==
  CASE b \notin Known                         -> "notfound"
    [] Len(chain) > DepthMax                  -> "depth"
    [] \E x \in Range(chain) : Same(x, b)     -> "cycle"
    [] Cardinality(Asked(a)) >= OutMax        -> "busy"
    [] OTHER                                  -> "budget"
AskRefused ==
  /\ call[E.p].to = E.a /\ srv[E.p].st = "run"
  /\ Is(E.b # "" => E.w = FirstLimit(E.a, Append(call[E.p].chain, E.a), E.b) \/ (E.w = "due" /\ srv[E.p].left <= LeftMin + Cut))
  /\ Nothing

Asks == /\ AskFor(E.p, E.c, E.b, TRUE, E.left) /\ NothingElse
        /\ Near(call'[E.c].left, E.left) /\ call'[E.c].chain = E.chain /\ call[E.p].to = E.a
        /\ E.left <= LeftMax[r]

\* A cell records the call of a client when the request arrives, after the Send of Calls. The cancel of a
\* client may overtake the request: it then makes the call and ends it.
Cancelled(b) == [Free EXCEPT !.st = "done", !.out = "cancel", !.by = E.c, !.ends = 1, !.to = b]
Overtaken(c) == call[c].st = "done" /\ Said(c, {"req"}) = {}
Spread(ms)   == net' = net \cup ms /\ UNCHANGED <<srv, disk, out, eff, down, flt>> /\ NothingElse

ClientAsks ==
  IF call[E.c].st = "free" THEN SendFor(E.c, E.b, E.left) /\ NothingElse
  ELSE /\ call[E.c].to = E.b /\ call[E.c].par = 0
       /\ IF Overtaken(E.c) THEN Spread({Msg("req", E.c, 0, E.left)}) /\ UNCHANGED call
          ELSE Nothing                            \* its cell was restarted, and admitted it again

\* A repeated request, or the first one right after its Ask.
Requests ==
  /\ call[E.c].to = E.b /\ E.left > 0
  /\ IF Pending(E.c) THEN E.left <= call[E.c].left + Cut
     ELSE call[E.c].par = 0 /\ call[E.c].out = "cancel"      \* a cancelled client still waits for the end
          /\ Is(\E m \in Said(E.c, {"req"}) : E.left <= m.t)
  /\ IF E.a = None THEN call[E.c].par = 0 /\ net' = net \cup {Msg("req", E.c, 0, E.left)} /\ UNCHANGED out
     ELSE /\ Caller(E.c) = E.a /\ call[E.c].chain = E.chain
          /\ out' = [out EXCEPT ![E.n] = @ \cup {Msg("req", E.c, 0, E.left)}] /\ UNCHANGED net
  /\ UNCHANGED <<call, srv, disk, eff, down, flt>> /\ NothingElse

Cancels ==
  IF E.a # None THEN Caller(E.c) = E.a /\ call[E.c].st # "free" /\ Speak({Say("cancel", E.c)})
  ELSE /\ call[E.c].par = 0
       /\ CASE Pending(E.c)          -> Close({E.c}, "cancel", 0)
            [] call[E.c].st = "free" -> call' = [call EXCEPT ![E.c] = Cancelled(E.b)]
            [] OTHER                 -> UNCHANGED call
       /\ Spread({Say("cancel", E.c)})

\* A completed call replies to every repeat; a refusal was sent when it was decided.
Answers ==
  /\ call[E.c].to = E.a /\ Is(E.b = None \/ Caller(E.c) = E.b)
  /\ IF srv[E.c].st = "done" /\ E.a \notin down THEN Speak({Say(srv[E.c].res, E.c)})
     ELSE Said(E.c, Words) # {} /\ Nothing

Tells == /\ IF Open(E.c) /\ srv[E.c].n > 0 THEN Speak({Msg("hold", E.c, srv[E.c].n, srv[E.c].h)}) ELSE Nothing
         /\ call[E.c].to = E.a

Comes == /\ Is(E.m = "hold" \/ Said(E.c, E.ks) # {})
         /\ E.a = IF E.m \in {"request", "cancel"} THEN call[E.c].to ELSE IF call[E.c].par = 0 THEN E.a ELSE Caller(E.c)
         /\ Nothing

Takes == /\ Admit(E.c, E.left, TRUE) /\ NothingElse
         /\ call[E.c].to = E.a /\ call[E.c].chain = E.chain
         /\ Cardinality({c \in Ids : srv'[c].st = "queued" /\ call[c].to = E.a}) = E.count

\* A request is refused for lack of capacity, or for another reason. A request that was cancelled
\* before it arrived finds a tombstone.
Refuses ==
  /\ Said(E.c, {"req"}) # {} /\ call[E.c].to = E.a
  /\ Is(srv[E.c].st = "none" \/ (srv[E.c].st = "done" /\ srv[E.c].res = E.w))
  /\ Is(E.w = "stop" => (Said(E.c, {"cancel"}) # {} \/ srv[E.c].st = "done"))
  /\ Speak({Say(E.w, E.c)})

Starts == Start(E.c) /\ call[E.c].to = E.a /\ Near(srv[E.c].left, E.left) /\ NothingElse

\* The end of a call at its callee: by itself, by expiry, by a cancel, or to break a wait cycle.
TurnEnds ==
  /\ call[E.c].to = E.a /\ E.a \notin down
  /\ CASE E.w = "due"  /\ <<"run", E.c>> \in seen.fired    -> Abort(E.c)
       [] E.w = "stop" /\ Said(E.c, {"cancel"}) # {}      -> Open(E.c) /\ Stop(E.c, "stop", net, {Say("stop", E.c)}) /\ UNCHANGED <<disk, down, flt>>
       [] E.w = "ring" /\ srv[E.c].st = "queued"          -> Runs[r][l - 1].k = "Ring" /\ Runs[r][l - 1].c = E.c
                                                             /\ Stop(E.c, "ring", net, {Say("ring", E.c)}) /\ UNCHANGED <<disk, down, flt>>
       [] OTHER                                           -> End(E.c, E.w)
  /\ Kids(E.c) = {}
  /\ Cardinality(Asked(E.a)) = E.pending
  /\ NothingElse

\* A turn that stops cancels one of its calls.
GivesUp ==
  /\ Pending(E.c) /\ Caller(E.c) = E.a /\ E.a \notin down
  /\ Close({E.c}, "cancel", 0)
  /\ UNCHANGED <<srv, disk, out, net, eff, down, flt>> /\ NothingElse

IsOver == /\ IF E.of = "run" THEN Open(E.c) /\ TraceDue(srv[E.c].left) ELSE Pending(E.c) /\ TraceDue(call[E.c].left)
          /\ Nothing

\* The end of a call at its caller: by expiry, or by the reply that the callee sent.
Gets ==
  /\ Caller(E.c) = E.a /\ call[E.c].par = E.p /\ Pending(E.c)
  /\ IF <<"call", E.c>> \in seen.fired /\ E.w = "due" THEN Expire(E.c) ELSE Answer(E.c, E.w, TRUE)
  /\ Cardinality({c \in Ids : call'[c].st = "wait" /\ Caller(c) = E.a}) = E.pending
  /\ NothingElse

\* ------------------------------------------------------------- waiting for a person
\* The clock of the turn stops or continues, and its caller is told. The reason is not checked here.
HoldsRun ==
  /\ Open(E.c) /\ call[E.c].to = E.a /\ E.a \notin down /\ E.m > srv[E.c].n
  /\ srv' = [srv EXCEPT ![E.c].n = E.m, ![E.c].h = E.d, ![E.c].u = E.d]
  /\ IF call[E.c].par = 0 THEN UNCHANGED out ELSE out' = [out EXCEPT ![E.n] = @ \cup {Msg("hold", E.c, E.m, E.d)}]
  /\ UNCHANGED <<call, disk, net, eff, down, flt>> /\ NothingElse
\* The caller receives Held or Resumed. The time held is less by the travel time of the message.
HoldsCall ==
  /\ Pending(E.c) /\ Caller(E.c) = E.a /\ E.a \notin down /\ E.m > call[E.c].n
  /\ Is(\E m \in Said(E.c, {"hold"}) : m.n = E.m /\ E.d <= m.t + Cut)
  /\ call' = [call EXCEPT ![E.c].n = E.m, ![E.c].h = E.d]
  /\ UNCHANGED <<srv, disk, out, net, eff, down, flt>> /\ NothingElse

\* -------------------------------------------------------------------- rings of waits
\* The waits that a refusal names: the victim is queued, and each call was made by the turn before it.
Ring ==
  /\ srv[E.c].st = "queued" /\ E.a \notin down
  /\ \A i \in 1..Len(E.ring) :
       LET h == E.ring[i]  next == E.ring[(i % Len(E.ring)) + 1]
       IN call[next.c].par = h.t /\ call[h.c].to = call[h.t].to
  /\ E.ring[Len(E.ring)].c = E.c
  /\ Nothing

\* ------------------------------------------------------------- what leaves the node
Leaves ==
  LET ms == {m \in out[E.n] : m.c = E.c /\ m.k \in E.ks}
  IN /\ Is(ms # {} \/ E.ks = {"hold"} \/ \E m \in net : m.c = E.c /\ m.k \in E.ks)
     /\ net' = net \cup ms
     /\ UNCHANGED <<call, srv, disk, out, eff, down, flt>> /\ NothingElse

Responds ==
  /\ call[E.c].par = 0
  /\ IF call[E.c].st = "free" \/ call[E.c].out \in {"cancel", "held"} THEN Nothing
     ELSE /\ Pending(E.c) /\ NothingElse
          /\ CASE E.w = "held" -> Close({E.c}, "held", 0) /\ UNCHANGED <<srv, disk, out, net, eff, down, flt>>
               [] E.w = "due" /\ TraceDue(call[E.c].left) -> Expire(E.c)
               [] OTHER -> Answer(E.c, E.w, TRUE)

Effects == /\ eff' = [eff EXCEPT ![E.c] = Append(@, E.key)]
           /\ E.pos <= sure[E.n]
           /\ UNCHANGED <<call, srv, disk, out, net, down, flt>> /\ NothingElse

\* ---------------------------------------------------------------------------- causes
\* A step of Calls sends, receives or performs several things at once, for which a history has an entry
\* each. `seen` relates these entries:
\*   claims  node, cell and epoch of each Claim
\*   cells   node, cell and incarnation of each cell that runs
\*   dead    nodes that have crashed and not restarted
\*   sent    call and message of each Send
\*   fired   clocks of calls and runs that have expired
\*   asked   run, step and index of each ask
\*   did     run, step and index of each effect that left its node
\*   last    per run: its last ask, as step, index and number of asks of the step
\*   owed    a bag: messages that have not left their node (Out) or that a cell has received and not
\*           processed (In), and replies to send
NoAsks == [s |-> 0, x |-> 0, of |-> 1]
Unsure == [s |-> 0, x |-> 0, of |-> 0]          \* a crash may have lost asks
Has(f) == f \in DOMAIN E
Expired(of) == <<of, E.c>> \in seen.fired
Out(m)  == <<E.n, E.c, m>>
In(m)   == <<E.n, E.cell, E.c, m>>
ToReply == <<E.c, "reply">>
\* A reply is owed for the end of a call, and for each repeat of its request.
Adds == CASE E.k = "Deliver" -> {In(E.m)} \cup IF E.m = "request" /\ srv[E.c].st = "done" THEN {ToReply} ELSE {}
          [] E.k \in {"Reply", "Refuse"} -> {ToReply}
          [] E.k \in {"request", "cancel", "hold", "answered"} -> {Out(E.m)}
          [] OTHER -> {}
Pays == CASE E.k = "send"                      -> {Out(E.m)}
          [] E.k = "answered"                  -> {ToReply}
          [] E.k = "Admit"                     -> {In("request")}
          [] E.k = "Refuse"                    -> {In("request")}
          [] E.k = "HoldCall"                  -> {In("hold")}
          [] E.k = "Reply" /\ E.w = "stop"     -> {In("cancel")}
          [] E.k = "Answer" /\ ~(E.w = "due" /\ Expired("call")) -> {In("answered")}
          [] OTHER -> {}
Complete(a) == a.x + 1 = a.of                   \* all asks of the step have been recorded
Follows(a)  == \/ a.of = 0
               \/ E.s = a.s /\ E.x = a.x + 1 /\ E.of = a.of
               \/ E.s = a.s + 1 /\ E.x = 0 /\ Complete(a)

Caused ==
  \* A node acts from its restart to its crash, a cell under its present incarnation.
  /\ (E.k = "Boot") = (Has("n") /\ E.n \in seen.dead)
  /\ Has("i") /\ E.k # "Restart" => \A x \in seen.cells : x[1] = E.n /\ x[2] = E.cell => x[3] = E.i
  \* A cell acts for an actor that is active there, under the epoch of its activation. (A single node
  \* owns all actors without a Claim.)
  /\ Has("e") /\ Has("a") => IF E.k = "Activate" THEN seen.claims = {} \/ <<E.n, E.cell, E.e>> \in seen.claims
                             ELSE at[E.a] = [n |-> E.n, c |-> E.cell, e |-> E.e]
  \* A message was sent before it arrives. (A client has no messages to and from its own cell.)
  /\ E.k = "Deliver" => <<E.c, E.m>> \in seen.sent
  /\ \A x \in Pays : (call[E.c].par = 0 /\ x # ToReply) \/ CopiesIn(x, seen.owed) > 0
  \* The asks of a run are numbered without a gap, and complete when it ends. Only they have effects,
  \* and only an effect has a result.
  /\ Has("s") => IF E.k = "Reply" THEN LET a == seen.last[E.c] IN a.of = 0 \/ (a.s = E.s /\ Complete(a))
                 ELSE Follows(seen.last[E.p])
  /\ E.k = "effect" => <<E.c, E.ask[1], E.ask[2]>> \in seen.asked
  /\ E.k = "result" => <<E.p, E.ask[1], E.ask[2]>> \in seen.did

Moved == IF E.k = "Crash" THEN Live(E.n) ELSE IF at[E.a].n \in {"", E.n} THEN {} ELSE {E.a}
Noted == seen' =
  [claims |-> IF E.k = "Claim" THEN seen.claims \cup {<<E.n, E.cell, E.e>>} ELSE seen.claims,
   cells  |-> CASE E.k = "Crash" -> {x \in seen.cells : x[1] # E.n}
                [] Has("i")      -> {x \in seen.cells : ~(x[1] = E.n /\ x[2] = E.cell)} \cup {<<E.n, E.cell, E.i>>}
                [] OTHER         -> seen.cells,
   dead   |-> CASE E.k = "Crash" -> seen.dead \cup {E.n} [] E.k = "Boot" -> seen.dead \ {E.n} [] OTHER -> seen.dead,
   sent   |-> IF E.k \in {"request", "cancel", "hold", "answered"} THEN seen.sent \cup {<<E.c, E.m>>} ELSE seen.sent,
   fired  |-> IF E.k = "Expire" THEN seen.fired \cup {<<E.of, E.c>>} ELSE seen.fired,
   asked  |-> IF Has("s") /\ E.k # "Reply" THEN seen.asked \cup {<<E.p, E.s, E.x>>} ELSE seen.asked,
   did    |-> IF E.k = "effect" THEN seen.did \cup {<<E.c, E.ask[1], E.ask[2]>>} ELSE seen.did,
   last   |-> CASE E.k \in {"Crash", "Activate"} ->
                     Array([c \in Ids |-> IF seen.last[c].s > 0 /\ call[c].to \in Moved THEN Unsure ELSE seen.last[c]])
                [] Has("s") /\ E.k # "Reply" -> [seen.last EXCEPT ![E.p] = [s |-> E.s, x |-> E.x, of |-> E.of]]
                [] OTHER -> seen.last,
   owed   |-> (seen.owed (+) SetToBag(Adds)) (-) SetToBag(Pays)]
NothingSeen == [claims |-> {}, cells |-> {}, dead |-> {}, sent |-> {}, fired |-> {}, asked |-> {}, did |-> {},
                last |-> Array([c \in Ids |-> NoAsks]), owed |-> EmptyBag]

\* The action of Calls that an entry corresponds to. Some entries are only a part of an action, or
\* correspond to none: the first request of a call, a message that leads to an Answer or a Cancel,
\* events of Waits and Placement. Wait and Decide are counted, not checked. Drop and Continue are
\* never taken: loss is the absence of a delivery, and turns are serial.
Actions == <<"Send", "Ask", "Expire", "GiveUp", "Resend", "Start", "Continue", "Reply", "Abort", "Wait", "Decide", "Hold",
             "Resume", "Admit", "Refuse", "Deliver", "Answer", "Cancel", "Hear", "Drop", "Sync", "Restart", "Crash", "Tick">>
Ended(c) == IF E.w = "due" /\ (E.k = "respond" => TraceDue(call[c].left)) /\ (E.k = "Answer" => <<"call", c>> \in seen.fired) THEN "Expire" ELSE "Answer"
Action ==
  CASE E.k \in {"Ask", "Admit", "Start", "Sync", "Crash", "Restart", "Tick", "Wait", "Decide"} -> E.k
    [] E.k = "client"   -> IF call[E.c].st = "free" \/ Overtaken(E.c) THEN "Send" ELSE ""
    [] E.k = "request"  -> IF Msg("req", E.c, 0, E.left) \in net \cup out[E.n] THEN "" ELSE "Resend"
    [] E.k = "cancel"   -> IF E.a = None /\ call[E.c].st # "done" THEN "GiveUp" ELSE ""
    [] E.k = "Deliver"  -> IF E.ks = {"req"} /\ srv[E.c].st # "none" THEN "Deliver" ELSE ""
    [] E.k = "Refuse"   -> IF E.w = "busy" THEN "Refuse" ELSE ""
    [] E.k = "Reply"    -> CASE E.w = "due" /\ <<"run", E.c>> \in seen.fired -> "Abort"
                             [] E.w = "stop" -> "Cancel"
                             [] E.w = "ring" -> ""
                             [] OTHER -> "Reply"
    [] E.k = "Answer"   -> Ended(E.c)
    [] E.k = "respond"  -> IF ~Pending(E.c) \/ E.w = "held" THEN "" ELSE Ended(E.c)
    [] E.k = "HoldRun"  -> IF E.d > 0 THEN "Hold" ELSE "Resume"
    [] E.k = "HoldCall" -> "Hear"
    [] E.k = "Activate" -> IF E.a \in down /\ at[E.a].n # "" THEN "Restart" ELSE ""
    [] OTHER -> ""
\* Counted in one register per action: TLC has one worker here.
Register(a) == CHOOSE i \in 1..Len(Actions) : Actions[i] = a
Taken == Len(Actions) + 1                       \* register of the last step: history and entry
ASSUME (\A i \in 1..Len(Actions) : TLCSet(i, 0)) /\ TLCSet(Taken, <<0, 0>>)
Counted == IF Action = "" THEN TRUE ELSE TLCSet(Register(Action), TLCGet(Register(Action)) + 1)
CountsTold == PrintT(ToString(<<"taken", [a \in Range(Actions) |-> TLCGet(Register(a))]>>))

\* Kinds without a counterpart in Calls.
Passed == {"Claim", "Boot", "ask", "Lose", "Drop", "Queue", "Probe", "ProbeHome", "Confirm", "Reprobe", "Detach", "Settle", "Late", "Wait", "Decide", "result", "other"}

\* After these, the state of Calls is the same, and so are its properties.
Silent == Passed \cup {"publish", "Append", "Deliver", "Expire", "AskRefused", "Ring"}

Step == Is(Caused) /\ Noted /\ (E.k \in Silent => UNCHANGED vars) /\
  CASE E.k \in Passed -> Nothing
    [] E.k = "Tick" -> Pass
    [] E.k = "publish" -> E.pos <= sure[E.n] /\ Nothing
    [] E.k = "Append" -> Appended
    [] E.k = "Sync" -> Synced
    [] E.k = "Crash" -> Crashed
    [] E.k = "Restart" -> Restarted
    [] E.k = "Activate" -> Activated
    [] E.k = "Deactivate" -> Deactivated
    [] E.k = "client" -> ClientAsks
    [] E.k = "Ask" -> Asks
    [] E.k = "AskRefused" -> AskRefused
    [] E.k = "request" -> Requests
    [] E.k = "cancel" -> Cancels
    [] E.k = "answered" -> Answers
    [] E.k = "hold" -> Tells
    [] E.k = "Deliver" -> Comes
    [] E.k = "Admit" -> Takes
    [] E.k = "Refuse" -> Refuses
    [] E.k = "Start" -> Starts
    [] E.k = "Reply" -> TurnEnds
    [] E.k = "Cancel" -> GivesUp
    [] E.k = "Expire" -> IsOver
    [] E.k = "Answer" -> Gets
    [] E.k = "HoldRun" -> HoldsRun
    [] E.k = "HoldCall" -> HoldsCall
    [] E.k = "Ring" -> Ring
    [] E.k = "send" -> Leaves
    [] E.k = "respond" -> Responds
    [] E.k = "effect" -> Effects

TraceInit ==
  /\ call = Array([c \in Ids |-> Free])
  /\ srv  = Array([c \in Ids |-> New])
  /\ disk = [call |-> call, srv |-> srv]
  /\ out  = [n \in Nodes |-> {}]
  /\ net  = {}
  /\ eff  = Array([c \in Ids |-> <<>>])
  /\ down = Agents
  /\ flt  = [giveup |-> 0, hold |-> 0, dup |-> 0, drop |-> 0, crash |-> 0]
  /\ now = 0
  /\ at  = [a \in Agents |-> [n |-> "", c |-> 0, e |-> 0]]
  /\ seen = NothingSeen
  /\ sure = [n \in Nodes |-> 0]
  /\ log = [n \in Nodes |-> <<>>]
  /\ age = [a \in Agents |-> 0]
  /\ l = 1 /\ r \in 1..Len(Runs)
\* A history stutters at its end. Before it, the lack of a next state is a deadlock, which TLC reports
\* with its position.
TraceNext ==
  \/ l <= Len(Runs[r]) /\ Step /\ Counted /\ TLCSet(Taken, <<r, l>>) /\ l' = l + 1 /\ r' = r
  \/ l > Len(Runs[r]) /\ CountsTold /\ UNCHANGED trace
TraceSpec == TraceInit /\ [][TraceNext]_trace
\* A position has one state, because each entry has one step: `make trace` compares the numbers. TLC
\* therefore needs no fingerprint of the whole state.
Place == <<r, l>>

\* For histories that must be rejected, each by itself: TLC reports the position and continues with the
\* others. It tries the step before the report, and its one worker has recorded the last step taken.
Rejected(entry, why) == PrintT(<<"rejected", r, entry, why>>)
JudgeNext == TraceNext \/ (l <= Len(Runs[r]) /\ TLCGet(Taken) # Place /\ Rejected(l, "no step") /\ UNCHANGED trace)
JudgeSpec == TraceInit /\ [][JudgeNext]_trace

\* Everything that has left a node is durable there; messages inside it follow their entries in the
\* same log.
TraceAcked ==
  /\ \A m \in net : call[m.c].st # "free" =>
       /\ m.k = "req" /\ call[m.c].par # 0 => disk.call[m.c].st # "free"
       /\ m.k = "ok" => disk.srv[m.c].st = "done"
  /\ \A c \in Ids : call[c].out = "ok" /\ call[c].par = 0 => disk.srv[c].st = "done"
\* The properties that the last entry could violate. Time changes clocks only.
Sound ==
  LET k == IF l = 1 THEN "" ELSE Runs[r][l - 1].k
      says(P, name) == P \/ (Rejected(l - 1, name) /\ FALSE)
  IN CASE k \in Silent -> TRUE
       [] k = "Tick"   -> says(TimeLeftShrinks, "TimeLeftShrinks")
       [] OTHER        ->
            /\ says(AcyclicCalls, "AcyclicCalls") /\ says(DepthBounded, "DepthBounded")
            /\ says(TimeLeftShrinks, "TimeLeftShrinks") /\ says(OutstandingBounded, "OutstandingBounded")
            /\ says(MailboxBounded, "MailboxBounded") /\ says(TurnExclusive, "TurnExclusive")
            /\ says(OneAnswer, "OneAnswer") /\ says(ReplyToCallerOnly, "ReplyToCallerOnly")
            /\ says(Structured, "Structured") /\ says(EffectOncePerAttempt, "EffectOncePerAttempt")
            /\ says(StartsOnlyKnown, "StartsOnlyKnown") /\ says(TraceAcked, "TraceAcked")
=============================================================================
