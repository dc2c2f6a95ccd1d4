------------------------------- MODULE Budget -------------------------------
(* The number of calls that the tree of a run may make (calls_per_tree_max).  *)
(*                                                                            *)
(* A call costs its turn 1 and carries a share of the rest. A reply returns   *)
(* the unspent part of the share. A call without a reply returns nothing,     *)
(* since its callee may still spend it. A request may be sent twice, the      *)
(* network between nodes may duplicate it (MaxDup), and messages arrive in    *)
(* any order. `Bug` removes one guard; "none" is the design. Calls.tla        *)
(* explains the notation.                                                     *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Ids,       \* call ids 1..n, used in order; 1 is the call of the client
  Total,     \* the calls that the tree may make
  FanMax,    \* calls of one action
  MaxResend, MaxExpire, MaxCrash, MaxDup,   \* budgets of faults; 0 duplicates: all actors are on one node
  Bug

VARIABLES
  call,   \* caller's side of each call; b is the share that it carries, att the number of its requests
  srv,    \* callee's side; b is the unspent budget of its turn
  net,    \* messages in transit: requests with their attempt, replies and refusals with a budget
  flt     \* faults so far
vars == <<call, srv, net, flt>>

Min(x, y) == IF x < y THEN x ELSE y
Less(x, y) == IF x > y THEN x - y ELSE 0
Used      == {c \in Ids : call[c].st # "free"}
Kids(p)   == {c \in Ids : call[c].par = p /\ call[c].st = "wait"}
Msg(k, c, n) == [k |-> k, c |-> c, n |-> n]

\* A delivered request leaves the network, or stays as a duplicate.
Take(m, keep) ==
  /\ m \in net
  /\ keep => flt.dup < MaxDup
  /\ flt' = IF keep THEN [flt EXCEPT !.dup = @ + 1] ELSE flt
Rest(m, keep) == IF keep THEN net ELSE net \ {m}
Keep == IF MaxDup = 0 THEN {FALSE} ELSE BOOLEAN

Init == /\ call = [c \in Ids |-> [st |-> "free", par |-> 0, b |-> 0, att |-> 0]]
        /\ srv = [c \in Ids |-> [st |-> "none", b |-> 0]]
        /\ net = {}
        /\ flt = [resend |-> 0, expire |-> 0, crash |-> 0, dup |-> 0]

Send ==                                         \* the client calls
  /\ Used = {}
  /\ call' = [call EXCEPT ![1] = [st |-> "wait", par |-> 0, b |-> Total, att |-> 1]]
  /\ net' = {Msg("req", 1, 1)}
  /\ UNCHANGED <<srv, flt>>

\* The share of each of n calls: after their cost, the rest is divided among them and their turn.
Share(left, n) == CASE Bug = "wholeshare" -> Less(left, n)
                    [] n >= left          -> 0
                    [] OTHER              -> (left - n) \div (n + 1)
Ask(p, n) ==                                    \* an action of turn p makes n calls, as far as its budget allows
  LET left == srv[p].b
      made == IF Bug = "overspend" /\ left > 0 THEN n ELSE Min(n, left)
      new  == {c \in Ids : c > Cardinality(Used) /\ c <= Cardinality(Used) + made}
  IN /\ srv[p].st = "run" /\ Kids(p) = {} /\ new # {}
     /\ call' = [c \in Ids |-> IF c \in new THEN [st |-> "wait", par |-> p, b |-> Share(left, n), att |-> 1] ELSE call[c]]
     /\ srv' = [srv EXCEPT ![p].b = Less(@, made * (1 + Share(left, n)))]
     /\ net' = net \cup {Msg("req", c, 1) : c \in new}
     /\ UNCHANGED flt

Resend(c) ==                                    \* no answer yet
  /\ call[c].st = "wait" /\ flt.resend < MaxResend
  /\ flt' = [flt EXCEPT !.resend = @ + 1]
  /\ call' = [call EXCEPT ![c].att = @ + 1]
  /\ net' = net \cup {Msg("req", c, call[c].att + 1)}
  /\ UNCHANGED srv

Expire(c) ==                                    \* the caller's timer: the callee may still make calls
  /\ c # 1 /\ call[c].st = "wait" /\ flt.expire < MaxExpire
  /\ flt' = [flt EXCEPT !.expire = @ + 1]
  /\ call' = [call EXCEPT ![c].st = "done"]
  /\ srv' = IF Bug = "lapse" THEN [srv EXCEPT ![call[c].par].b = @ + call[c].b] ELSE srv
  /\ UNCHANGED net

Admit(c, att, keep) ==
  /\ Take(Msg("req", c, att), keep)
  /\ srv[c].st = "none" \/ (Bug = "dedup" /\ srv[c].st = "done")
  /\ net' = Rest(Msg("req", c, att), keep)
  /\ srv' = [srv EXCEPT ![c] = [st |-> "run", b |-> call[c].b]]
  /\ UNCHANGED call

Refuse(c, att, keep) ==                         \* the mailbox is full
  /\ Take(Msg("req", c, att), keep) /\ srv[c].st = "none"
  /\ net' = Rest(Msg("req", c, att), keep) \cup {Msg("busy", c, call[c].b)}
  /\ UNCHANGED <<call, srv>>

Deliver(c, att) ==                              \* a repeat of an ended call gets the reply again
  /\ Msg("req", c, att) \in net /\ srv[c].st = "done"
  /\ net' = (net \ {Msg("req", c, att)}) \cup {Msg("reply", c, srv[c].b)}
  /\ UNCHANGED <<call, srv, flt>>

Reply(c) ==
  /\ srv[c].st = "run" /\ Kids(c) = {}
  /\ srv' = [srv EXCEPT ![c].st = "done"]
  /\ net' = net \cup {Msg("reply", c, srv[c].b)}
  /\ UNCHANGED <<call, flt>>

\* A refused call returns its share, unless another request may still be admitted and spend it.
Answer(c, k, n) ==
  LET again == (call[c].att > 1 /\ Bug # "refund") \/ (MaxDup > 0 /\ Bug # "duplicate")
      back  == IF k = "busy" /\ again THEN 0 ELSE n
  IN /\ Msg(k, c, n) \in net
     /\ net' = net \ {Msg(k, c, n)}
     /\ IF call[c].st = "wait" \/ Bug = "late"
        THEN /\ call' = [call EXCEPT ![c].st = "done"]
             /\ srv' = IF c = 1 THEN srv ELSE [srv EXCEPT ![call[c].par].b = @ + back]
        ELSE UNCHANGED <<call, srv>>
     /\ UNCHANGED flt

Restart(c) ==                                   \* after a crash, the journal restores the unspent budget
  /\ srv[c].st = "run" /\ flt.crash < MaxCrash
  /\ flt' = [flt EXCEPT !.crash = @ + 1]
  /\ srv' = IF Bug = "refill" THEN [srv EXCEPT ![c].b = call[c].b] ELSE srv
  /\ UNCHANGED <<call, net>>

Quiet == call[1].st = "done"

Next ==
  \/ Send
  \/ \E c \in Ids : Resend(c) \/ Expire(c) \/ Reply(c) \/ Restart(c)
  \/ \E p \in Ids, n \in 1..FanMax : Ask(p, n)
  \/ \E c \in Ids, att \in 1..(MaxResend + 1) : Deliver(c, att)
  \/ \E c \in Ids, att \in 1..(MaxResend + 1), keep \in Keep : Admit(c, att, keep) \/ Refuse(c, att, keep)
  \/ \E c \in Ids, k \in {"reply", "busy"}, n \in 0..Total : Answer(c, k, n)
  \/ (Quiet /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars

TypeOK == \A c \in Ids : /\ call[c].st \in {"free", "wait", "done"} /\ call[c].b \in 0..Total
                         /\ srv[c].st \in {"none", "run", "done"} /\ srv[c].b \in Nat
                         /\ srv[c].st # "none" => call[c].st # "free"
\* A tree makes no more calls than its budget.
TreeBudgetKept == Cardinality(Used \ {1}) <= Total

\* ---------------------------------------------- what must be possible: each must be violated
Not_AllSpent     == Cardinality(Used \ {1}) < Total
Not_ReturnedUsed == Cardinality({c \in Ids : call[c].par = 1}) < Total     \* without returned shares one call made all calls
Not_RefusedRuns  == ~\E c \in Ids : srv[c].st = "run" /\ call[c].st = "done" /\ flt.expire = 0
=============================================================================
