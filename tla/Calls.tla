------------------------------- MODULE Calls -------------------------------
(* The protocol by which one actor calls another, and its properties.         *)
(*                                                                            *)
(* This is the module promised as KelpieMultiAgentInvocation. Its constant    *)
(* Nodes is one of module Placement, where calls and ownership of actors      *)
(* meet; here each actor has one node of its own. Its constant Calls is Ids   *)
(* here. The other promised names are aliases at the end of the module.       *)
(*                                                                            *)
(* For readers who know Go but not TLA+: a state is a value of VARIABLES. An  *)
(* action is a condition on the state before and the state after, which is    *)
(* written with a prime: `x' = e` gives the next value of x. Next is the      *)
(* choice between all actions. TLC explores every choice from Init in every   *)
(* order, and checks each state (INVARIANTS) and each step (PROPERTIES).      *)
(*                                                                            *)
(* Each actor has a node of its own, so all communication is by message. The  *)
(* network loses, duplicates and reorders messages. A call c has a caller's   *)
(* side (call[c]) and a callee's side (srv[c]). Both count down their time    *)
(* left. A clock is stopped while a turn waits for a person. A node appends   *)
(* its decisions to its log. Its messages are sent when the log is synced. A  *)
(* crash loses the unsynced tail.                                             *)
(*                                                                            *)
(* Faults have a budget, reactions have none. A lost message is one that is   *)
(* never delivered; Drop is needed only where delivery is guaranteed. `Bug`   *)
(* removes one guard; "none" is the design.                                   *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Agents, Known,      \* all actors; those whose agent is in the tables of the cells
  Client, None,       \* a caller outside the system; no actor
  Ids,                \* call ids 1..n, used in order
  Turns,              \* "serial": a turn keeps its actor while it waits; "interleaved": it does not
  More,               \* {FALSE}, or {FALSE, TRUE} if an action may make several calls at once
  Resends,            \* TRUE: an unanswered call is resent
  DepthMax, OutMax, BoxMax, Time, HoldTime,                   \* limits
  MaxRoots, MaxGiveUp, MaxHold, MaxDup, MaxDrop, MaxCrash,    \* budgets
  Bug

VARIABLES
  call,   \* caller's side of each call
  srv,    \* callee's side of each call: its place in the queue, its turn, its entry Done
  disk,   \* call and srv, as a node would restore them after a crash
  out,    \* per node: messages held back by the gate
  net,    \* messages in transit, unordered
  eff,    \* per call: the attempts of its external effect that were performed
  down,   \* nodes that have crashed and not restarted
  flt     \* faults and other actions of the environment so far
vars == <<call, srv, disk, out, net, eff, down, flt>>

\* A node's log entry is a change of these records: Accepted (srv "queued"), Asked (call "wait"),
\* Answered (call "done"), Done (srv "done"). A journal is thus modelled by the state it restores.
Free == [st |-> "free", out |-> "none", by |-> 0, ends |-> 0, par |-> 0, to |-> None, chain |-> <<>>,
         all |-> 0, left |-> 0, ran |-> 0, n |-> 0, h |-> 0]
New  == [st |-> "none", res |-> "none", left |-> 0, att |-> 0, n |-> 0, h |-> 0, u |-> 0]

Range(s)    == {s[i] : i \in 1..Len(s)}
Min(x, y)   == IF x < y THEN x ELSE y
Max(x, y)   == IF x > y THEN x ELSE y
Dec(x)      == IF x > 0 THEN x - 1 ELSE 0
\* Module Trace redefines these: real actors have agents, and real clocks are read slightly late.
Same(a, b)  == a = b                            \* two actors of one agent
Due(left)   == left = 0
Within(t, all) == t <= all

Used        == {c \in Ids : call[c].st # "free"}
Fresh(c)    == call[c].st = "free" /\ \A d \in Ids : d < c => call[d].st # "free"
Pending(c)  == call[c].st = "wait"
Caller(c)   == IF call[c].par = 0 THEN Client ELSE call[call[c].par].to
KidsIn(cs, p) == {c \in Ids : p # 0 /\ cs[c].par = p /\ cs[c].st = "wait"}
Kids(p)     == KidsIn(call, p)                                              \* calls that turn p waits for
Asked(a)    == {c \in Ids : Pending(c) /\ Caller(c) = a}                    \* calls that actor a waits for
Queue(a)    == {c \in Ids : srv[c].st = "queued" /\ call[c].to = a}
Holds(c)    == srv[c].st = "run" \/ (srv[c].st = "await" /\ (Turns = "serial" \/ Bug = "keepturn"))
Holders(a)  == {c \in Ids : Holds(c) /\ call[c].to = a}
Open(c)     == srv[c].st \in {"queued", "run", "await", "ready"}

\* Still(c) is the remaining time for which the clock of turn c is stopped because the turn, or a turn
\* below it, waits for a person (h). u is the remaining time that its caller was last told.
StillIn(cs, ss, c) == LET rests == {ss[c].h} \cup {cs[k].h : k \in KidsIn(cs, c)}
                      IN CHOOSE t \in rests : \A u \in rests : t >= u
Still(c) == StillIn(call, srv, c)

\* A message: kind, call, number, time. Requests carry the time left, Held and Resumed their number.
Msg(k, c, n, t) == [k |-> k, c |-> c, n |-> n, t |-> t]
Req(c)          == Msg("req", c, 0, IF Bug = "alltime" THEN call[c].all ELSE call[c].left)
Say(k, c)       == Msg(k, c, 0, 0)
Ends            == {"ok", "busy", "due", "stop"}      \* replies; each of them ends a call

Init ==
  /\ call = [c \in Ids |-> Free]
  /\ srv  = [c \in Ids |-> New]
  /\ disk = [call |-> call, srv |-> srv]
  /\ out  = [a \in Agents |-> {}]
  /\ net  = {}
  /\ eff  = [c \in Ids |-> <<>>]
  /\ down = {}
  /\ flt  = [giveup |-> 0, hold |-> 0, dup |-> 0, drop |-> 0, crash |-> 0]

\* ------------------------------------------------------------------ the gate
\* Without crashes no message needs to wait at the gate.
Early   == CASE Bug = "ackearly"  -> {"ok"}
             [] Bug = "askearly"  -> {"req"}
             [] Bug = "workearly" -> {"work"}
             [] OTHER             -> {}
Gated(a, m) == a # Client /\ MaxCrash > 0 /\ m.k \notin Early

Perform(ms) == eff' = [c \in Ids |->
  LET w == {m \in ms : m.k = "work" /\ m.c = c}
  IN IF w = {} THEN eff[c] ELSE Append(eff[c], (CHOOSE m \in w : TRUE).n)]
Mail(ms) == {m \in ms : m.k # "work"}

Post(rest, a, ms) ==                            \* node a sends ms; rest is the network without the message it read
  LET held == {m \in ms : Gated(a, m)}
  IN /\ net' = rest \cup Mail(ms \ held)
     /\ Perform(ms \ held)
     /\ out' = IF a = Client THEN out ELSE [out EXCEPT ![a] = @ \cup held]

Save(a) == disk' =
  [call |-> [c \in Ids |-> IF c \in Used /\ Caller(c) = a THEN call[c] ELSE disk.call[c]],
   srv  |-> [c \in Ids |-> IF call[c].to = a THEN srv[c] ELSE disk.srv[c]]]

Sync(a) ==
  /\ MaxCrash > 0 /\ a \notin down
  /\ Save(a) /\ (disk' # disk \/ out[a] # {})
  /\ net' = net \cup Mail(out[a])
  /\ Perform(out[a])
  /\ out' = [out EXCEPT ![a] = {}]
  /\ UNCHANGED <<call, srv, down, flt>>

\* A delivered message leaves the network, or stays as a duplicate.
Take(m, keep) ==
  /\ m \in net
  /\ keep => flt.dup < MaxDup
  /\ flt' = IF keep THEN [flt EXCEPT !.dup = @ + 1] ELSE flt
Rest(m, keep) == IF keep THEN net ELSE net \ {m}
Keep == IF MaxDup = 0 THEN {FALSE} ELSE BOOLEAN

\* --------------------------------------------------------------- caller's side
Make(c, p, b, chain, t) ==
  /\ Fresh(c)
  /\ b \in Known \/ Bug = "exists"
  /\ call' = [call EXCEPT ![c] = [Free EXCEPT !.st = "wait", !.par = p, !.to = b, !.chain = chain,
                                              !.all = t, !.left = t]]

SendFor(c, b, t) ==                             \* a client calls
  /\ Cardinality({r \in Used : call[r].par = 0}) < MaxRoots
  /\ Make(c, 0, b, <<>>, t)
  /\ Post(net, Client, {Msg("req", c, 0, t)})
  /\ UNCHANGED <<srv, disk, down, flt>>
Send(c, b) == SendFor(c, b, Time)

AskFor(p, c, b, more, own) ==                   \* turn p calls; with more, its action makes further calls
  LET a     == call[p].to
      chain == Append(call[p].chain, a)
      t     == IF Bug = "inherit" THEN own ELSE Min(own, srv[p].left)
  IN /\ srv[p].st = "run" /\ a \notin down
     /\ srv[p].left > 0                        \/ Bug = "lateask"
     /\ Len(chain) <= DepthMax                 \/ Bug = "depth"
     /\ (~\E x \in Range(call[p].chain) : Same(x, b)) \/ Bug = "cycle"
     /\ ~Same(a, b)                            \/ Bug = "self"
     /\ Cardinality(Asked(a)) < OutMax         \/ Bug = "outstanding"
     /\ Make(c, p, b, chain, t)
     /\ srv' = IF more THEN srv ELSE [srv EXCEPT ![p].st = "await"]
     /\ Post(net, a, {Msg("req", c, 0, t)})
     /\ UNCHANGED <<disk, down, flt>>
Ask(p, c, b, more) == AskFor(p, c, b, more, Time)

Close(cs, o, by) == call' = [c \in Ids |->      \* the calls cs end with outcome o
  IF c \notin cs THEN call[c]
  ELSE [call[c] EXCEPT !.st = "done", !.out = o, !.by = IF by = 0 THEN c ELSE by, !.ends = @ + 1,
                       !.all = 0, !.left = 0, !.ran = 0, !.n = 0, !.h = 0]]

Back(c) ==                                      \* call c has ended; its turn continues if it was the last
  LET p == call[c].par
  IN IF p # 0 /\ Kids(p) = {c} /\ srv[p].st = "await"
     THEN [srv EXCEPT ![p].st = IF Turns = "serial" THEN "run" ELSE "ready"]
     ELSE srv

\* The call that a reply to c ends: c itself. (If matched by callee, it could be another one.)
Match(c) ==
  LET like == {d \in Ids \ {c} : Pending(d) /\ call[d].to = call[c].to /\ Caller(d) = Caller(c)}
  IN IF Bug = "anycall" /\ like # {} THEN CHOOSE d \in like : TRUE ELSE c

Answer(c, k, keep) ==                           \* a reply arrives
  LET d == Match(c)
  IN /\ k \in Ends /\ Take(Say(k, c), keep) /\ Caller(c) \notin down
     /\ IF Pending(d) \/ Bug = "late"
        THEN Close({d}, k, c) /\ srv' = Back(d)
        ELSE UNCHANGED <<call, srv>>
     /\ Post(Rest(Say(k, c), keep), Caller(c), {})
     /\ UNCHANGED <<disk, down>>

Expire(c) ==                                    \* the caller's timer
  /\ Pending(c) /\ Caller(c) \notin down /\ Bug # "noexpire"
  /\ Due(call[c].left) \/ Bug = "hasty"
  /\ Close({c}, "timeout", 0) /\ srv' = Back(c)
  /\ Post(net, Caller(c), {Say("cancel", c)})
  /\ UNCHANGED <<disk, down, flt>>

GiveUp(c) ==                                    \* a client cancels its call
  /\ Pending(c) /\ call[c].par = 0 /\ flt.giveup < MaxGiveUp
  /\ flt' = [flt EXCEPT !.giveup = @ + 1]
  /\ Close({c}, "cancel", 0)
  /\ Post(net, Client, {Say("cancel", c)})
  /\ UNCHANGED <<srv, disk, down>>

Resend(c) ==                                    \* no answer yet: the request is resent
  /\ Resends /\ Pending(c) /\ Caller(c) \notin down /\ Bug # "noresend"
  /\ call[c].left > 0 \/ Bug = "lateresend"
  /\ ~\E m \in net : m.k = "req" /\ m.c = c
  /\ Caller(c) # Client => Req(c) \notin out[Caller(c)]
  /\ Post(net, Caller(c), {Req(c)})
  /\ UNCHANGED <<call, srv, disk, down, flt>>

Hear(c, n, t, keep) ==                          \* Held (t > 0) or Resumed (t = 0) arrives; the higher n wins
  LET m == Msg("hold", c, n, t)
  IN /\ Take(m, keep) /\ Caller(c) \notin down
     /\ IF Pending(c) /\ (n > call[c].n \/ Bug = "oldheld" \/ (n = call[c].n /\ Bug = "heldagain"))
        THEN call' = [call EXCEPT ![c].n = Max(@, n), ![c].h = t]
        ELSE UNCHANGED call
     /\ net' = Rest(m, keep)
     /\ UNCHANGED <<srv, disk, out, eff, down>>

\* --------------------------------------------------------------- callee's side
Arrives(c, t, keep) == Take(Msg("req", c, 0, t), keep) /\ call[c].to \notin down
Room(c)             == Cardinality(Queue(call[c].to)) < BoxMax

Admit(c, t, keep) ==                            \* a new request that fits into the mailbox
  /\ Arrives(c, t, keep)
  /\ srv[c].st = "none" \/ (Bug = "dedup" /\ srv[c].st = "done")
  /\ Room(c) \/ Bug = "queue"
  /\ srv' = [srv EXCEPT ![c] = [New EXCEPT !.st = "queued", !.left = IF Bug = "fulltime" THEN Time ELSE t]]
  /\ Post(Rest(Msg("req", c, 0, t), keep), call[c].to, {})
  /\ UNCHANGED <<call, disk, down>>

Refuse(c, t, keep) ==                           \* a new request that does not fit: Busy leaves no entry and passes no gate
  /\ Arrives(c, t, keep)
  /\ srv[c].st = "none" /\ ~Room(c)
  /\ net' = Rest(Msg("req", c, 0, t), keep) \cup {Say("busy", c)}
  /\ UNCHANGED <<call, srv, disk, out, eff, down>>

Deliver(c, t, keep) ==                          \* a repeated request
  /\ Arrives(c, t, keep)
  /\ srv[c].st # "none"
  /\ Post(Rest(Msg("req", c, 0, t), keep), call[c].to,
          CASE srv[c].st = "done" -> IF Bug = "mute" THEN {} ELSE {Say(srv[c].res, c)}
            [] Open(c) /\ srv[c].u > 0 -> {Msg("hold", c, srv[c].n, srv[c].u)}
            [] OTHER -> {})
  /\ UNCHANGED <<call, srv, disk, down>>

Work(c, att) == {Msg("work", c, att, 0)}        \* the external effect of the turn

Start(c) ==
  LET b == call[c].to
  IN /\ srv[c].st = "queued" /\ b \notin down
     /\ Holders(b) = {}  \/ Bug = "reenter"
     /\ srv[c].left > 0  \/ Bug = "zombie"
     /\ srv' = [srv EXCEPT ![c].st = "run", ![c].att = 1]
     /\ Post(net, b, Work(c, 1))
     /\ UNCHANGED <<call, disk, down, flt>>

Continue(p) ==                                  \* interleaved: the answered turn takes its actor again
  LET a == call[p].to
  IN /\ srv[p].st = "ready" /\ a \notin down
     /\ Holders(a) = {} \/ Bug = "barge"
     /\ srv' = [srv EXCEPT ![p].st = "run"]
     /\ UNCHANGED <<call, disk, out, net, eff, down, flt>>

Done(c, r) == srv' = [srv EXCEPT ![c] = [New EXCEPT !.st = "done", !.res = r]]

End(p, r) ==                                    \* state, Done and reply are one commit
  /\ srv[p].st = "run" /\ call[p].to \notin down
  /\ Kids(p) = {} \/ Bug = "orphan"
  /\ Done(p, r)
  /\ Post(net, call[p].to, {Say(r, p)})
  /\ UNCHANGED <<call, disk, down, flt>>
Reply(p) == End(p, "ok")

\* The turn ends early. In the same step its open calls end and are cancelled.
Stop(c, r, rest, say) ==
  LET ks == IF Bug = "nocascade" THEN {} ELSE Kids(c)
  IN /\ Done(c, r)
     /\ Close(ks, "cancel", 0)
     /\ Post(rest, call[c].to, say \cup IF Bug = "silent" THEN {} ELSE {Say("cancel", k) : k \in ks})

Cancel(c, keep) ==                              \* may overtake its request: Done remains as a tombstone
  LET m == Say("cancel", c)
  IN /\ Take(m, keep) /\ call[c].to \notin down
     /\ IF (srv[c].st # "done" \/ Bug = "latecancel") /\ ~(srv[c].st = "none" /\ Bug = "tombstone")
        THEN Stop(c, "stop", Rest(m, keep), {})
        ELSE net' = Rest(m, keep) /\ UNCHANGED <<call, srv, out, eff>>
     /\ UNCHANGED <<disk, down>>

Abort(c) ==                                     \* the timer of the callee
  /\ Open(c) /\ call[c].to \notin down /\ Bug # "noabort"
  /\ Due(srv[c].left) \/ Bug = "hastyabort"
  /\ Stop(c, "due", net, {Say("due", c)})
  /\ UNCHANGED <<disk, down, flt>>

\* ------------------------------------------------------------- waiting for a person
Wait(c) ==                                      \* the turn waits for a person
  /\ srv[c].st = "run" /\ Kids(c) = {} /\ call[c].to \notin down /\ flt.hold < MaxHold
  /\ flt' = [flt EXCEPT !.hold = @ + 1]
  /\ srv' = [srv EXCEPT ![c].st = "await", ![c].h = HoldTime]
  /\ UNCHANGED <<call, disk, out, net, eff, down>>

Decide(c) ==                                    \* the person has decided, or the deadline of the wait has passed
  /\ srv[c].st = "await" /\ Kids(c) = {} /\ call[c].to \notin down
  /\ srv' = [srv EXCEPT ![c].h = 0, ![c].st = IF Turns = "serial" THEN "run" ELSE "ready"]
  /\ UNCHANGED <<call, disk, out, net, eff, down, flt>>

Tell(c, t) ==
  /\ Open(c) /\ call[c].to \notin down
  /\ srv' = [srv EXCEPT ![c].n = @ + 1, ![c].u = t]
  /\ Post(net, call[c].to, {Msg("hold", c, srv[c].n + 1, t)})
  /\ UNCHANGED <<call, disk, down, flt>>
Hold(c)   == (Still(c) > srv[c].u \/ Bug = "samehold") /\ Tell(c, Still(c))
Resume(c) == Still(c) = 0 /\ srv[c].u > 0 /\ Tell(c, 0)

\* --------------------------------------------------------------- environment
\* `ran` is the time that ExpireOnlyWhenDue checks. It counts except while this record of the caller, in
\* memory or on disk, knows the latest Held of its callee and the callee is in fact held.
Truly(r, c) == r.n = srv[c].n /\ srv[c].u > 0 /\ Still(c) > 0
CallTick(r, c) ==
  IF r.st # "wait" THEN r
  ELSE [r EXCEPT !.h    = IF Bug = "forever" THEN @ ELSE Dec(@),
                 !.left = IF r.h > 0 /\ Bug # "deaf" THEN @ ELSE Dec(@),
                 !.ran  = IF Truly(r, c) THEN @ ELSE Min(@ + 1, r.all)]
SrvTick(r, still) ==
  IF r.st \in {"none", "done"} THEN r
  ELSE [r EXCEPT !.h = Dec(@), !.u = Dec(@), !.left = IF still > 0 /\ Bug # "deafturn" THEN @ ELSE Dec(@)]
Clocks(cs, ss) == <<[c \in Ids |-> CallTick(cs[c], c)], [c \in Ids |-> SrvTick(ss[c], StillIn(cs, ss, c))]>>

Tick ==
  LET now == Clocks(call, srv) then == Clocks(disk.call, disk.srv)
  IN /\ now # <<call, srv>>
     /\ call' = now[1] /\ srv' = now[2]
     /\ disk' = [call |-> then[1], srv |-> then[2]]
     /\ UNCHANGED <<out, net, eff, down, flt>>

Drop(k, c) ==
  /\ flt.drop < MaxDrop /\ {m \in net : m.k = k /\ m.c = c} # {}
  /\ net' = {m \in net : ~(m.k = k /\ m.c = c)}
  /\ flt' = [flt EXCEPT !.drop = @ + 1]
  /\ UNCHANGED <<call, srv, disk, out, eff, down>>

\* A crash keeps a prefix of the log that contains all synced entries: either nothing more, or all of
\* it (keep). A shorter prefix equals an earlier crash, since the rest was never visible.
Crash(a, keep) ==
  /\ a \notin down /\ flt.crash < MaxCrash
  /\ flt' = [flt EXCEPT !.crash = @ + 1]
  /\ down' = down \cup {a}
  /\ out' = [out EXCEPT ![a] = {}]
  /\ IF keep THEN Save(a) /\ UNCHANGED <<call, srv>>
     ELSE /\ call' = [c \in Ids |-> IF c \in Used /\ Caller(c) = a THEN disk.call[c] ELSE call[c]]
          /\ srv'  = [c \in Ids |-> IF call[c].to = a THEN disk.srv[c] ELSE srv[c]]
          /\ UNCHANGED disk
  /\ UNCHANGED <<net, eff>>

\* Restart: turns resume from the journal, their effects with attempt + 1; open calls are resent.
Again(c) == IF Bug = "sameattempt" THEN srv[c].att ELSE srv[c].att + 1
Restart(a) ==
  LET asked == Asked(a)
      runs  == {c \in Ids : call[c].to = a /\ srv[c].st = "run"}
  IN /\ a \in down
     /\ down' = down \ {a}
     /\ call' = [c \in Ids |-> IF c \in asked /\ Bug = "forget" THEN Free ELSE call[c]]
     /\ srv'  = [c \in Ids |-> IF c \in runs THEN [srv[c] EXCEPT !.att = Again(c)] ELSE srv[c]]
     /\ Post(net, a, {Req(c) : c \in {d \in asked : call[d].left > 0 /\ Bug \notin {"forget", "noresend"}}}
                     \cup UNION {Work(c, Again(c)) : c \in runs})
     /\ UNCHANGED <<disk, flt>>

\* All calls have ended. Any other state without a successor is a deadlock, which TLC reports.
Quiet == \A c \in Ids : ~Pending(c) /\ ~Open(c)

\* Quantified over constants only, so that TLC knows each action by its name and parameters.
Calm ==
  \/ \E c \in Ids, b \in Agents : Send(c, b)
  \/ \E p, c \in Ids, b \in Agents, more \in More : Ask(p, c, b, more)
  \/ \E c \in Ids : \/ Expire(c) \/ GiveUp(c) \/ Resend(c) \/ Start(c) \/ Continue(c) \/ Reply(c) \/ Abort(c)
                    \/ Wait(c) \/ Decide(c) \/ Hold(c) \/ Resume(c)
  \/ \E c \in Ids, t \in 0..Time, keep \in Keep : Admit(c, t, keep) \/ Refuse(c, t, keep) \/ Deliver(c, t, keep)
  \/ \E c \in Ids, k \in Ends, keep \in Keep : Answer(c, k, keep)
  \/ \E c \in Ids, keep \in Keep : Cancel(c, keep)
  \/ \E c \in Ids, n \in 1..(2 * MaxHold), t \in 0..HoldTime, keep \in Keep : Hear(c, n, t, keep)
  \/ \E k \in Ends \cup {"req", "cancel", "hold"}, c \in Ids : Drop(k, c)
  \/ \E a \in Known : Sync(a) \/ Restart(a) \/ \E keep \in BOOLEAN : Crash(a, keep)
Next == Calm \/ Tick \/ (Quiet /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars

\* For models without resends, duplicates and crashes: states are equal if they differ only in data
\* that is never read again (the outcome of a call, a reply to it, a message to its ended turn).
Matters(m) == IF m.k \in {"req", "cancel"} THEN srv[m.c].st # "done" ELSE Pending(m.c)
Sight == <<[c \in Ids |-> [call[c] EXCEPT !.out = ""]], [c \in Ids |-> [srv[c] EXCEPT !.res = ""]],
           {m \in net : Matters(m)}, flt>>

\* A constraint for models of every kind of fault: one client and one fault, or two clients and none.
ClientAndFault == flt.giveup + flt.hold + flt.dup + flt.drop + flt.crash
                    + Cardinality({r \in Used : call[r].par = 0}) <= 2

\* Only timers and restarts are fair. Messages may never arrive.
Timers   == WF_vars(Tick) /\ (\A c \in Ids : WF_vars(Expire(c)) /\ WF_vars(Abort(c)))
                          /\ (\A a \in Known : WF_vars(Restart(a)))
TimeSpec == Spec /\ Timers

\* No time passes. Nodes take every possible step, and messages arrive unless they are dropped.
Wheels == /\ \A c \in Ids : /\ WF_vars(Resend(c)) /\ WF_vars(Start(c)) /\ WF_vars(Continue(c)) /\ WF_vars(Reply(c))
                            /\ \A t \in 0..Time : WF_vars(Admit(c, t, FALSE)) /\ WF_vars(Deliver(c, t, FALSE))
                            /\ \A k \in Ends : WF_vars(Answer(c, k, FALSE))
          /\ \A a \in Known : WF_vars(Sync(a)) /\ WF_vars(Restart(a))
CalmSpec == Init /\ [][Calm]_vars /\ Wheels

\* ---------------------------------------------------------------- properties
TypeOK ==
  /\ \A c \in Ids : /\ call[c].st \in {"free", "wait", "done"}
                    /\ (call[c].st = "done") = (call[c].out # "none")
                    /\ srv[c].st \in {"none", "queued", "run", "await", "ready", "done"}
                    /\ (srv[c].st = "done") = (srv[c].res # "none")
  /\ down \subseteq Known

\* No agent occurs twice in a chain of calls.
AcyclicCalls == \A c \in Used : LET ch == Append(call[c].chain, call[c].to)
                                IN \A i \in 1..Len(ch), j \in 1..Len(ch) : i < j => ~Same(ch[i], ch[j])
DepthBounded == \A c \in Used : Len(call[c].chain) <= DepthMax
\* A call never has more time than the turn that waits for it. Its callee never has more time than the
\* call was made with.
TimeLeftShrinks == \A c \in Ids : Pending(c) =>
  LET p == call[c].par IN /\ p # 0 /\ Open(p) => call[c].left <= srv[p].left
                          /\ Open(c) => Within(srv[c].left, call[c].all)
OutstandingBounded == \A a \in Agents : Cardinality(Asked(a)) <= OutMax
MailboxBounded == \A a \in Agents : Cardinality(Queue(a)) <= BoxMax
TurnExclusive == \A a \in Agents : Cardinality(Holders(a)) <= 1
\* Every call ends at most once, and by the reply to that very call.
OneAnswer == \A c \in Ids : call[c].ends <= 1
ReplyToCallerOnly == \A c \in Ids : call[c].st = "done" => call[c].by = c
\* An open call has a turn that waits for it.
Structured == \A c \in Used : Pending(c) /\ call[c].par # 0 => srv[call[c].par].st \in {"run", "await"}
\* Everything that has left a node is durable there: calls that were sent, results that were reported.
AckedIsDurable == \A c \in Used :
  /\ (\E m \in net : m.c = c /\ m.k = "req") /\ call[c].par # 0 => disk.call[c].st # "free"
  /\ Say("ok", c) \in net \/ call[c].out = "ok" => disk.srv[c].st = "done"
EffectOncePerAttempt == \A c \in Ids : Cardinality(Range(eff[c])) = Len(eff[c])
StartsOnlyKnown == \A c \in Ids : srv[c].st \in {"run", "await", "ready"} => call[c].to \in Known

\* No turn starts and no request is sent without time left. No request carries more time than its call
\* has. (A crash only restores earlier states. A request at the gate was sent earlier.)
NoWorkPastDeadline == [][
  /\ \A c \in Ids : srv[c].st = "queued" /\ srv'[c].st = "run" => srv[c].left > 0
  /\ \A m \in net' \ net : m.k = "req" =>
       m.t > 0 /\ (m.t <= call'[m.c].left \/ \E a \in Agents : m \in out[a])]_vars
\* A call or turn expires only after its clock has run for its whole time.
ExpireOnlyWhenDue == [][\A c \in Ids :
  /\ Pending(c) /\ call'[c].out = "timeout" => call[c].ran >= call[c].all
  /\ Open(c) /\ srv'[c].res = "due" => srv[c].left = 0]_vars
\* Held or Resumed is sent only if it changes the time that the caller was last told, and a call applies
\* it once.
HeldOnce == [][flt'.crash = flt.crash => \A c \in Ids :
  /\ srv'[c].n > srv[c].n => srv'[c].u # srv[c].u
  /\ call'[c].h > call[c].h => call'[c].n > call[c].n]_vars
\* The outcome that a callee has recorded is final: no message changes it. A callee refuses no call that it has
\* admitted.
TerminalStable == [][flt'.crash = flt.crash => \A c \in Ids :
  /\ srv[c].st = "done" => srv'[c] = srv[c]
  /\ Say("busy", c) \in net' \ net => srv[c].st = "none"]_vars
\* A call ended by its caller starts only if the cancel is still in transit. (Only without message
\* loss.)
CancelledNeverStarts == [][\A c \in Ids :
  srv[c].st = "queued" /\ srv'[c].st = "run" /\ call[c].out \in {"cancel", "timeout"} => Say("cancel", c) \in net]_vars

\* With interleaved turns there is no wait cycle, whatever the calls are.
Waits(x) == (IF srv[x].st = "await" THEN Kids(x) ELSE {}) \cup
            (IF srv[x].st \in {"queued", "ready"} THEN Holders(call[x].to) \ {x} ELSE {})
RECURSIVE Reach(_)
Reach(S) == LET T == S \cup UNION {Waits(x) : x \in S} IN IF T = S THEN S ELSE Reach(T)
NoWaitRing == \A c \in Used : srv[c].st = "await" => c \notin Reach(Waits(c))

EveryCallEnds == \A c \in Ids : Pending(c) ~> ~Pending(c)
TurnComesBack == \A c \in Ids : Holds(c) ~> ~Holds(c)

\* Aliases with fixed names: of constants, of the state in other terms, of two properties.
MAX_DEPTH  == DepthMax
TIMEOUT_MS == Time
callStack  == [c \in Used |-> Append(call[c].chain, call[c].to)]
callState  == [c \in Used |-> CASE Pending(c) -> "Pending" [] call[c].out = "ok" -> "Completed"
                                [] call[c].out = "timeout" -> "TimedOut" [] OTHER -> "Failed"]
Begun(a)  == {c \in Used : srv[c].st \in {"run", "await", "ready"} /\ call[c].to = a}
agentState == [a \in {b \in Agents : Begun(b) # {}} |->
                 CASE \E c \in Begun(a) : srv[c].st = "run" -> "Running"
                   [] \E c \in Begun(a) : srv[c].h > 0 -> "Paused"
                   [] OTHER -> "Waiting"]
NoDeadlock == AcyclicCalls
CallEventuallyCompletes == EveryCallEnds

\* ---------------------------------------------- what must be possible: each must be violated
Not_LateReply      == ~\E c \in Ids : call[c].out = "timeout" /\ Say("ok", c) \in net
Not_Busy           == ~\E c \in Ids : call[c].out = "busy"
Not_RequestLost    == ~\E c \in Ids : Pending(c) /\ srv[c].st = "none" /\ ~\E m \in net : m.c = c
Not_FanOut         == ~\E c, d \in Ids : c # d /\ srv[c].st = "run" /\ srv[d].st = "run"
                                               /\ call[c].par = call[d].par /\ call[c].par # 0
Not_Deep           == ~\E c \in Ids : srv[c].st = "run" /\ Len(call[c].chain) = DepthMax
Not_UnknownOutcome == ~\E c \in Ids : srv[c].res = "ok" /\ call[c].out = "timeout"
Not_Cascade        == ~\E c, d \in Ids : call[d].par = c /\ call[c].out = "cancel" /\ call[d].out = "cancel"
Not_Tombstone      == ~\E c \in Ids : srv[c].res = "stop" /\ (\E m \in net : m.k = "req" /\ m.c = c)
Not_AnsweredAgain  == ~\E c \in Ids : srv[c].res = "ok" /\ call[c].out = "ok" /\ (\E m \in net : m.k = "req" /\ m.c = c)
Not_RefusedRuns    == ~\E c \in Ids : call[c].out = "busy" /\ srv[c].st = "run"
Not_WaitRing       == NoWaitRing
Not_MutualCalls    == ~\E c, d \in Ids : /\ srv[c].st = "run" /\ call[c].chain = <<call[d].to>>
                                         /\ srv[d].st = "run" /\ call[d].chain = <<call[c].to>>
Not_Rerun          == ~\E c \in Ids : call[c].out = "ok" /\ 2 \in Range(eff[c])
Not_AskedAgain     == ~\E c \in Ids : call[c].out = "ok" /\ call[c].par # 0 /\ flt.crash > 0 /\ eff[c] = <<1>>
Not_HeldAbove      == ~\E c \in Ids : call[c].h > 0 /\ srv[c].h = 0 /\ Kids(c) # {}
Not_PausedBelow    == ~\E c \in Used : /\ callState[c] = "Pending" /\ Len(callStack[c]) > 1
                                        /\ call[c].to \in DOMAIN agentState /\ agentState[call[c].to] = "Paused"
Not_HeldThenOk     == ~\E c \in Ids : call[c].out = "ok" /\ srv[c].st = "done" /\ flt.hold > 0

Sym == Permutations(Known)
=============================================================================
