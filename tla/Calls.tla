------------------------------- MODULE Calls -------------------------------
(* Agent-to-agent invocation in a virtual-actor runtime.                    *)
(* Caller side: call[c].  Callee side: srv[c], one turn per agent.          *)
(* The network may lose, duplicate and reorder; a host may crash.           *)
(* Time is a small integer; deadlines are absolute and inherited.           *)
(* `Bug` selects one seeded defect; "none" is the design.                   *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Agents, Ids, None,     \* Ids: finite set of call ids
          MaxRoots, MaxDepth, MaxFan, QMax, Budget, MaxTime,
          MaxTry, MaxLoss, MaxDup, MaxCrash, Bug

VARIABLES now,    \* virtual time
          call,   \* caller-side record per call id
          srv,    \* callee side: none queued run await done dropped
          eff,    \* committed effects of a call (durable)
          deliv,  \* outcomes handed to the caller's code
          turn,   \* per agent: the call that holds the turn, or None
          net,    \* messages in flight
          flt     \* fault budget used
vars == <<now, call, srv, eff, deliv, turn, net, flt>>

Free == [st |-> "free", out |-> "none", par |-> None, to |-> None,
         chain |-> <<>>, dl |-> 0, try |-> 0]
Range(s)   == {s[i] : i \in 1..Len(s)}
Min(x, y)  == IF x < y THEN x ELSE y
Used       == {c \in Ids : call[c].st # "free"}
Pending(c) == call[c].st = "wait"
Kids(p)    == {c \in Ids : call[c].par = p /\ Pending(c)}
Active(c)  == srv[c] \in {"queued", "run", "await"}
Queue(a)   == {c \in Ids : srv[c] = "queued" /\ call[c].to = a}
Fresh      == LET f == Ids \ Used IN IF f = {} THEN {} ELSE {CHOOSE c \in f : TRUE}
Msg(k, c)  == [k |-> k, c |-> c]
EndKinds   == {"ok", "busy"}                 \* message kinds that end a call

Init == /\ now = 0
        /\ call = [c \in Ids |-> Free]
        /\ srv = [c \in Ids |-> "none"]
        /\ eff = [c \in Ids |-> 0]
        /\ deliv = [c \in Ids |-> 0]
        /\ turn = [a \in Agents |-> None]
        /\ net = {}
        /\ flt = [loss |-> 0, dup |-> 0, crash |-> 0]

New(c, p, b, ch, d) ==
  /\ call[c].st = "free"
  /\ call' = [call EXCEPT ![c] = [st |-> "wait", out |-> "none", par |-> p, to |-> b,
                                  chain |-> ch, dl |-> d, try |-> 0]]
  /\ net' = net \cup {Msg("req", c)}

\* ------------------------------------------------------------- caller side
Send(c, b, d) ==
  /\ Cardinality({r \in Used : call[r].par = None}) < MaxRoots
  /\ d > now /\ d <= MaxTime
  /\ New(c, None, b, <<>>, d)
  /\ UNCHANGED <<now, srv, eff, deliv, turn, flt>>

Ask(p, c, b, own) ==            \* own: the deadline the caller asks for
  LET a == call[p].to
  IN /\ srv[p] = "run" /\ now < call[p].dl
     /\ Cardinality(Kids(p)) < MaxFan
     /\ Bug = "cycle" \/ b \notin Range(call[p].chain) \cup {a}
     /\ Bug = "depth" \/ Len(call[p].chain) + 1 <= MaxDepth
     /\ New(c, p, b, Append(call[p].chain, a),
            IF Bug = "inherit" THEN own ELSE Min(own, call[p].dl))
     /\ UNCHANGED <<now, srv, eff, deliv, turn, flt>>

End(cs, o) ==                                \* the calls cs end with outcome o
  /\ call'  = [c \in Ids |-> IF c \in cs THEN [call[c] EXCEPT !.st = "done", !.out = o] ELSE call[c]]
  /\ deliv' = [c \in Ids |-> IF c \in cs THEN deliv[c] + 1 ELSE deliv[c]]

Expire(c) ==
  /\ Pending(c) /\ now >= call[c].dl /\ Bug # "noexpire"
  /\ End({c}, "timeout")
  /\ net' = net \cup {Msg("can", c)}
  /\ UNCHANGED <<now, srv, eff, turn, flt>>

CancelSend(c) ==
  /\ Pending(c) /\ call[c].par = None
  /\ End({c}, "cancel")
  /\ net' = net \cup {Msg("can", c)}
  /\ UNCHANGED <<now, srv, eff, turn, flt>>

Retry(c) ==
  /\ Pending(c) /\ now < call[c].dl /\ call[c].try < MaxTry /\ Msg("req", c) \notin net
  /\ call' = [call EXCEPT ![c].try = @ + 1]
  /\ net' = net \cup {Msg("req", c)}
  /\ UNCHANGED <<now, srv, eff, deliv, turn, flt>>

\* A delivered message leaves the network, or stays as a duplicate.
Take(m, keep) ==
  /\ m \in net
  /\ IF keep THEN flt.dup < MaxDup /\ flt' = [flt EXCEPT !.dup = @ + 1] ELSE UNCHANGED flt
Rest(m, keep) == IF keep THEN net ELSE net \ {m}

Answer(c, k, keep) ==
  /\ k \in EndKinds /\ Take(Msg(k, c), keep)
  /\ net' = Rest(Msg(k, c), keep)
  /\ IF Pending(c) \/ Bug = "late" THEN End({c}, k) ELSE UNCHANGED <<call, deliv>>
  /\ UNCHANGED <<now, srv, eff, turn>>

\* ------------------------------------------------------------- callee side
Admit(c, keep) ==
  LET m == Msg("req", c)
      b == call[c].to
  IN /\ Take(m, keep)
     /\ IF now >= call[c].dl THEN UNCHANGED srv /\ net' = Rest(m, keep)
        ELSE CASE srv[c] = "none" /\ (Cardinality(Queue(b)) < QMax \/ Bug = "queue") ->
                    srv' = [srv EXCEPT ![c] = "queued"] /\ net' = Rest(m, keep)
               [] srv[c] = "none" /\ ~(Cardinality(Queue(b)) < QMax \/ Bug = "queue") ->
                    UNCHANGED srv /\ net' = Rest(m, keep) \cup {Msg("busy", c)}
               [] srv[c] = "done" ->                     \* duplicate of a finished call
                    IF Bug = "dedup" /\ Cardinality(Queue(b)) < QMax
                    THEN srv' = [srv EXCEPT ![c] = "queued"] /\ net' = Rest(m, keep)
                    ELSE UNCHANGED srv /\ net' = Rest(m, keep) \cup {Msg("ok", c)}
               [] OTHER -> UNCHANGED srv /\ net' = Rest(m, keep)
     /\ UNCHANGED <<now, call, eff, deliv, turn>>

Start(c) ==
  LET b == call[c].to
  IN /\ srv[c] = "queued" /\ (turn[b] = None \/ Bug = "reenter") /\ (now < call[c].dl \/ Bug = "zombie")
     /\ srv' = [srv EXCEPT ![c] = "run"]
     /\ turn' = [turn EXCEPT ![b] = c]
     /\ UNCHANGED <<now, call, eff, deliv, net, flt>>

Await(p) ==                     \* wait for children; the turn is given back
  /\ srv[p] = "run" /\ Kids(p) # {}
  /\ srv' = [srv EXCEPT ![p] = "await"]
  /\ turn' = IF Bug = "hold" THEN turn ELSE [turn EXCEPT ![call[p].to] = None]
  /\ UNCHANGED <<now, call, eff, deliv, net, flt>>

Resume(p) ==
  LET a == call[p].to
  IN /\ srv[p] = "await" /\ Kids(p) = {} /\ turn[a] \in {None, p} /\ now < call[p].dl
     /\ srv' = [srv EXCEPT ![p] = "run"]
     /\ turn' = [turn EXCEPT ![a] = p]
     /\ UNCHANGED <<now, call, eff, deliv, net, flt>>

Reply(p) ==                    \* state, effect, dedup record and reply: one commit
  /\ srv[p] = "run" /\ (Kids(p) = {} \/ Bug = "orphan")
  /\ srv' = [srv EXCEPT ![p] = "done"]
  /\ eff' = [eff EXCEPT ![p] = @ + 1]
  /\ turn' = [turn EXCEPT ![call[p].to] = None]
  /\ net' = net \cup {Msg("ok", p)}
  /\ UNCHANGED <<now, call, deliv, flt>>

EarlyReply(p) ==                \* seeded bug only: reply before the commit
  /\ Bug = "early" /\ srv[p] = "run" /\ net' = net \cup {Msg("ok", p)}
  /\ UNCHANGED <<now, call, srv, eff, deliv, turn, flt>>

Stop(p) ==                      \* the handler ends; its children are cancelled
  LET a == call[p].to
      ks == IF Bug = "nocascade" THEN {} ELSE Kids(p)
  IN /\ srv' = [srv EXCEPT ![p] = "dropped"]
     /\ turn' = IF turn[a] = p THEN [turn EXCEPT ![a] = None] ELSE turn
     /\ End(ks, "cancel")
     /\ UNCHANGED <<now, eff>>

Cancel(c, keep) ==
  LET m == Msg("can", c)
  IN /\ Take(m, keep)
     /\ IF srv[c] = "none" \/ Active(c)
        THEN Stop(c) /\ net' = Rest(m, keep) \cup {Msg("can", k) : k \in Kids(c)}
        ELSE UNCHANGED <<now, call, srv, eff, deliv, turn>> /\ net' = Rest(m, keep)

Abort(c) ==                     \* the callee's own deadline timer
  /\ Active(c) /\ now >= call[c].dl /\ Bug # "noabort"
  /\ Stop(c) /\ net' = net \cup {Msg("can", k) : k \in Kids(c)}
  /\ UNCHANGED flt

\* ------------------------------------------------------------- environment
Tick(d) == /\ d > now /\ d <= MaxTime /\ now' = d
           /\ UNCHANGED <<call, srv, eff, deliv, turn, net, flt>>

Drop(m) == /\ m \in net /\ flt.loss < MaxLoss
           /\ flt' = [flt EXCEPT !.loss = @ + 1] /\ net' = net \ {m}
           /\ UNCHANGED <<now, call, srv, eff, deliv, turn>>

Crash(a) ==                     \* volatile state of the host is gone; eff and "done" are durable
  LET dead == {p \in Ids : call[p].to = a /\ Active(p)}
      kids == UNION {Kids(p) : p \in dead}
  IN /\ flt.crash < MaxCrash /\ flt' = [flt EXCEPT !.crash = @ + 1]
     /\ srv' = [c \in Ids |-> IF c \in dead THEN "none" ELSE srv[c]]
     /\ turn' = [turn EXCEPT ![a] = None]
     /\ call' = [c \in Ids |-> IF c \in kids THEN [call[c] EXCEPT !.st = "done", !.out = "lost"] ELSE call[c]]
     /\ UNCHANGED <<now, eff, deliv, net>>

Quiet == now = MaxTime /\ \A c \in Ids : ~Pending(c) /\ ~Active(c)

\* Quantify over constants only, so that TLC knows each action by name and parameters.
SendNew(c, b)    == c \in Fresh /\ Send(c, b, now + Budget)
AskNew(p, c, b) == c \in Fresh /\ Ask(p, c, b, now + Budget)
Next == \/ \E c \in Ids, b \in Agents : SendNew(c, b)
        \/ \E p \in Ids, c \in Ids, b \in Agents : AskNew(p, c, b)
        \/ \E c \in Ids : \/ Expire(c) \/ CancelSend(c) \/ Retry(c) \/ Start(c) \/ Await(c)
                          \/ Resume(c) \/ Reply(c) \/ EarlyReply(c) \/ Abort(c)
        \/ \E c \in Ids, keep \in BOOLEAN :
             Admit(c, keep) \/ Cancel(c, keep) \/ \E k \in EndKinds : Answer(c, k, keep)
        \/ \E k \in {"req", "can"} \cup EndKinds, c \in Ids : Drop(Msg(k, c))
        \/ \E a \in Agents : Crash(a)
        \/ Tick(now + 1)
        \/ Quiet /\ UNCHANGED vars

Fair == /\ WF_vars(Tick(now + 1))
        /\ \A c \in Ids : WF_vars(Expire(c)) /\ WF_vars(Abort(c))
Spec == Init /\ [][Next]_vars
LiveSpec == Spec /\ Fair

\* ------------------------------------------------------------- properties
TypeOK == /\ now \in 0..MaxTime
          /\ \A c \in Ids : /\ srv[c] \in {"none", "queued", "run", "await", "done", "dropped"}
                            /\ call[c].st \in {"free", "wait", "done"}
                            /\ (call[c].st = "done") = (call[c].out # "none")
          /\ \A a \in Agents : turn[a] \in Ids \cup {None}
AcyclicCalls == \A c \in Used : LET ch == Append(call[c].chain, call[c].to)
                           IN Cardinality(Range(ch)) = Len(ch)
DepthBounded == \A c \in Used : Len(call[c].chain) <= MaxDepth
TimeLeftShrinks == \A c \in Used : call[c].par # None => call[c].dl <= call[call[c].par].dl
OneAnswer == \A c \in Ids : /\ deliv[c] <= 1
                                 /\ (call[c].st = "done" /\ call[c].out # "lost") => deliv[c] = 1
EffectOncePerAttempt == \A c \in Ids : eff[c] <= 1
AckedIsDurable == \A c \in Ids : call[c].out = "ok" => eff[c] >= 1
TurnExclusive == \A a \in Agents : LET r == {c \in Ids : srv[c] = "run" /\ call[c].to = a}
                                   IN r = {} \/ r = {turn[a]}
MailboxBounded == \A a \in Agents : Cardinality(Queue(a)) <= QMax
Structured == \A c \in Used : Pending(c) /\ call[c].par # None => srv[call[c].par] \in {"run", "await"}
Waits(x) == (IF srv[x] = "await" THEN Kids(x) ELSE {}) \cup
            (IF srv[x] = "queued" \/ (srv[x] = "await" /\ Kids(x) = {})
             THEN {turn[call[x].to]} \ {None, x} ELSE {})
RECURSIVE Reach(_)
Reach(S) == LET T == S \cup UNION {Waits(x) : x \in S} IN IF T = S THEN S ELSE Reach(T)
NoDeadlock == AcyclicCalls      \* the first seed's name: no agent twice in a call stack
NoWaitRing == \A c \in Used : srv[c] = "await" => c \notin Reach(Waits(c))

NoWorkPastDeadline == [][\A c \in Ids : srv[c] # "run" /\ srv'[c] = "run" => now < call[c].dl]_vars
OutcomeStable == [][\A c \in Ids : call[c].st = "done" => call'[c] = call[c]]_vars
EveryCallEnds == \A c \in Ids : Pending(c) ~> ~Pending(c)
CallEventuallyCompletes == EveryCallEnds
TurnComesBack == \A a \in Agents : turn[a] # None ~> turn[a] = None

Sym == Permutations(Agents)
=============================================================================
