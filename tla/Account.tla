------------------------------- MODULE Account -------------------------------
(* What the trees of a user spend on a day (user_tokens_per_day).             *)
(*                                                                            *)
(* A tree draws a purse from the account of its user before it begins, and    *)
(* returns the rest at its end. Both are calls of another actor: a request    *)
(* may be sent twice, messages arrive in any order, and a crash loses those   *)
(* in transit. The journals keep what trees and account have decided. `Bug`   *)
(* removes one guard; "none" is the design. Calls.tla explains the notation.  *)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Trees,     \* 1..n, each of the same user
  Day,       \* what they may spend
  Want,      \* what each wants to draw
  MaxResend, MaxCrash,   \* budgets of faults
  Bug

VARIABLES
  tree,   \* st: new, draw, run, return, done; purse: what is left of it; spent
  acct,   \* drawn: granted and not returned; grant: outcome of each draw, Day + 1 before; back: the trees that have returned
  net,    \* messages in transit
  flt     \* faults so far
vars == <<tree, acct, net, flt>>

Min(x, y)  == IF x < y THEN x ELSE y
Less(x, y) == IF x > y THEN x - y ELSE 0
RECURSIVE Sum(_, _)
Sum(f, S)  == IF S = {} THEN 0 ELSE LET t == CHOOSE t \in S : TRUE IN f[t] + Sum(f, S \ {t})
Open       == Day + 1
Msg(k, t, n) == [k |-> k, t |-> t, n |-> n]

Init == /\ tree = [t \in Trees |-> [st |-> "new", purse |-> 0, rest |-> 0, spent |-> 0]]
        /\ acct = [drawn |-> 0, grant |-> [t \in Trees |-> Open], back |-> {}]
        /\ net = {}
        /\ flt = [resend |-> 0, crash |-> 0]

\* What a tree that waits has asked of the account.
Request(t) == IF tree[t].st = "draw" THEN Msg("draw", t, Want) ELSE Msg("return", t, tree[t].rest)

Begin(t) ==                                     \* a message is accepted
  /\ tree[t].st = "new"
  /\ tree' = [tree EXCEPT ![t].st = "draw"]
  /\ net' = net \cup {Msg("draw", t, Want)}
  /\ UNCHANGED <<acct, flt>>

Resend(t) ==
  /\ tree[t].st \in {"draw", "return"} /\ Request(t) \notin net
  /\ flt.resend < MaxResend
  /\ flt' = [flt EXCEPT !.resend = @ + 1]
  /\ net' = net \cup {Request(t)}
  /\ UNCHANGED <<tree, acct>>

Draw(t) ==                                      \* a repeated draw gets the recorded answer
  LET m     == Msg("draw", t, Want)
      again == acct.grant[t] # Open /\ Bug # "regrant"
      g     == IF again THEN acct.grant[t] ELSE Min(Want, Less(Day, acct.drawn))
  IN /\ m \in net
     /\ net' = (net \ {m}) \cup {Msg("grant", t, g)}
     /\ acct' = IF again THEN acct
                ELSE [acct EXCEPT !.grant[t] = g, !.drawn = IF Bug = "uncharged" THEN @ ELSE @ + g]
     /\ UNCHANGED <<tree, flt>>

Grant(t, g) ==                                  \* a second answer is late
  /\ Msg("grant", t, g) \in net
  /\ net' = net \ {Msg("grant", t, g)}
  /\ tree' = CASE tree[t].st = "draw" -> [tree EXCEPT ![t].st = "run", ![t].purse = g]
               [] tree[t].st = "run" /\ Bug = "late" -> [tree EXCEPT ![t].purse = @ + g]
               [] OTHER -> tree
  /\ UNCHANGED <<acct, flt>>

Spend(t) ==
  /\ tree[t].st = "run" /\ tree[t].purse > 0
  /\ tree' = [tree EXCEPT ![t].purse = @ - 1, ![t].spent = @ + 1]
  /\ UNCHANGED <<acct, net, flt>>

End(t) ==                                       \* the outcome and the return are one entry
  LET rest == IF Bug = "whole" THEN tree[t].purse + tree[t].spent ELSE tree[t].purse
  IN /\ tree[t].st = "run"
     /\ tree' = [tree EXCEPT ![t].st = "return", ![t].purse = 0, ![t].rest = rest]
     /\ net' = net \cup {Msg("return", t, rest)}
     /\ UNCHANGED <<acct, flt>>

Return(t) ==                                    \* a repeated return changes nothing
  LET m == Msg("return", t, tree[t].rest)
  IN /\ m \in net
     /\ net' = (net \ {m}) \cup {Msg("returned", t, 0)}
     /\ acct' = IF t \in acct.back /\ Bug # "reback" THEN acct
                ELSE [acct EXCEPT !.back = @ \cup {t}, !.drawn = Less(@, tree[t].rest)]
     /\ UNCHANGED <<tree, flt>>

Returned(t) ==
  /\ Msg("returned", t, 0) \in net
  /\ net' = net \ {Msg("returned", t, 0)}
  /\ tree' = IF tree[t].st = "return" THEN [tree EXCEPT ![t].st = "done"] ELSE tree
  /\ UNCHANGED <<acct, flt>>

Crash ==                                        \* what waits is sent again after a restart
  /\ flt.crash < MaxCrash
  /\ flt' = [flt EXCEPT !.crash = @ + 1]
  /\ net' = {Request(t) : t \in {x \in Trees : tree[x].st \in {"draw", "return"} /\ ~(Bug = "forgets" /\ tree[x].st = "return")}}
  /\ UNCHANGED <<tree, acct>>

Quiet == net = {} /\ \A t \in Trees : tree[t].st \in {"return", "done"}

Next ==
  \/ Crash
  \/ \E t \in Trees : Begin(t) \/ Resend(t) \/ Draw(t) \/ Spend(t) \/ End(t) \/ Return(t) \/ Returned(t)
  \/ \E t \in Trees, g \in 0..Day : Grant(t, g)
  \/ (Quiet /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars

Spent == Sum([t \in Trees |-> tree[t].spent], Trees)

TypeOK == /\ \A t \in Trees : /\ tree[t].st \in {"new", "draw", "run", "return", "done"}
                              /\ tree[t].purse \in Nat /\ acct.grant[t] \in 0..Open
          /\ acct.drawn \in Nat
\* The trees of a day spend no more than its budget.
NeverOverspent == Spent <= Day
\* Once nothing is on its way, what was not spent can be drawn again.
RestComesBack == Quiet => acct.drawn = Spent

\* ---------------------------------------------- what must be possible: each must be violated
Not_DaySpent   == Spent < Day
Not_DrawnAgain == Sum([t \in Trees |-> IF acct.grant[t] = Open THEN 0 ELSE acct.grant[t]], Trees) <= Day
=============================================================================
