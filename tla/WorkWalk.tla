------------------------------ MODULE WorkWalk ------------------------------
(* Random walks through Work for the Go specs of the same properties. A walk  *)
(* consists of the visible state after each step. Good is TRUE if every step  *)
(* satisfies OnlySucceededAdvances and ApprovalOnce.                          *)
EXTENDS Work

CONSTANT Steps
VARIABLES walk, good

Looks == <<up,
           [t \in Tools |-> <<tool[t].st, tool[t].took, tool[t].pol>>],
           [t \in Tools |-> [n \in 1..Last(t) |-> <<appr[t][n].st, appr[t][n].args>>]],
           {<<a.t, a.n, a.x>> : a \in told},
           [t \in Tools |-> [i \in 1..Len(eff[t]) |-> <<eff[t][i].n, eff[t][i].x>>]],
           due>>

WalkInit == Init /\ walk = <<>> /\ good = TRUE
WalkNext == /\ Len(walk) < Steps /\ Next
            /\ walk' = Append(walk, Looks')
            /\ good' = (good /\ OnlySucceededAdvances' /\ ApprovalOnce')
WalkSpec == WalkInit /\ [][WalkNext]_<<vars, walk, good>>

\* Each walk is printed when it ends.
Walked == Len(walk) < Steps \/ PrintT(ToString(<<"walk", good, walk>>))
=============================================================================
