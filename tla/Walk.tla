-------------------------------- MODULE Walk --------------------------------
(* Random walks through Calls for the code to follow. A test of package       *)
(* runtime executes every step of a walk with real cells and compares their   *)
(* state with that of the walk. `make trace` draws new walks.                 *)
(*                                                                            *)
(* A walk is a behaviour of Calls in which no time passes and cells do not    *)
(* delay steps: the first queued call takes a free turn at once. (Module      *)
(* Trace covers delays and time.)                                             *)
EXTENDS Calls

CONSTANT Steps
VARIABLES came,   \* order in which calls were enqueued
          walk    \* the steps so far: action, call, turn or kind, actor, flag; and the state after each
walking == <<vars, came, walk>>

\* Of each call: its state at its caller and at its callee.
Stands == [c \in Ids |-> <<call[c].st, call[c].out, srv[c].st>>]
Took(action, c, of, a, yes) == walk' = Append(walk, <<action, c, of, a, yes, Stands'>>)

First(c)  == \A d \in Ids : d # c /\ srv[d].st = "queued" /\ call[d].to = call[c].to => came[c] < came[d]
Eager     == \E c \in Ids : srv[c].st = "queued" /\ Holders(call[c].to) = {} /\ call[c].to \notin down
Lives(a)  == \E c \in Ids : call[c].to = a /\ srv[c].st # "none"
Stay      == came' = came
Comes(c)  == came' = [came EXCEPT ![c] = Len(walk) + 1]

\* `Keep` and the remaining variables are constant while no time passes.
Move ==
  \/ \E c \in Ids, b \in Known : Send(c, b) /\ Took("Send", c, 0, b, FALSE) /\ Stay
  \/ \E p, c \in Ids, b \in Known : Ask(p, c, b, FALSE) /\ Took("Ask", c, p, b, FALSE) /\ Stay
  \/ \E c \in Ids : \/ GiveUp(c) /\ Took("GiveUp", c, 0, "", FALSE) /\ Stay
                    \/ Reply(c) /\ Took("Reply", c, 0, "", FALSE) /\ Stay
  \/ \E c \in Ids, keep \in Keep :
       \/ Admit(c, Time, keep) /\ Took("Admit", c, 0, "", keep) /\ Comes(c)
       \/ Refuse(c, Time, keep) /\ Took("Refuse", c, 0, "", keep) /\ Stay
       \/ Deliver(c, Time, keep) /\ Took("Deliver", c, 0, "", keep) /\ Stay
       \/ Cancel(c, keep) /\ Took("Cancel", c, 0, "", keep) /\ Stay
       \/ \E k \in Ends : Answer(c, k, keep) /\ Took("Answer", c, k, "", keep) /\ Stay
  \/ \E c \in Ids, k \in Ends \cup {"req", "cancel"} : Drop(k, c) /\ Took("Drop", c, k, "", FALSE) /\ Stay
  \/ UNCHANGED vars /\ Took("Rest", 0, 0, "", FALSE) /\ Stay
  \/ \E a \in Known : \/ Sync(a) /\ Took("Sync", 0, 0, a, FALSE) /\ Stay
                      \/ Restart(a) /\ Took("Restart", 0, 0, a, FALSE) /\ Stay
                      \/ \E keep \in BOOLEAN : Lives(a) /\ Crash(a, keep) /\ Took("Crash", 0, 0, a, keep) /\ Stay

WalkInit == Init /\ came = [c \in Ids |-> 0] /\ walk = <<>>
WalkNext ==
  /\ Len(walk) < Steps
  /\ IF Eager THEN \E c \in Ids : First(c) /\ Start(c) /\ Took("Start", c, 0, "", FALSE) /\ Stay
              ELSE Move
WalkSpec == WalkInit /\ [][WalkNext]_walking

\* Each walk is printed when it ends.
Told == Len(walk) < Steps \/ PrintT(ToString(<<"walk", walk>>))
=============================================================================
