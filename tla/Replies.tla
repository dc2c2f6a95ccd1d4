------------------------------ MODULE Replies ------------------------------
(* Detached calls: an actor sends work out and goes on, and the outcome comes *)
(* back as a message of its own session.                                      *)
(*                                                                            *)
(* A turn writes a pending row, and the request leaves once the row is        *)
(* durable. The first outcome settles the row: one batch drops it and adds    *)
(* the message. The message has one turn, in the order of the outcomes. An    *)
(* answer to a settled row is late: it is recorded and never delivered.       *)
(* Requests and replies may be lost, repeated or delayed, either side may     *)
(* crash, and the session of the asker may be deleted. `Bug` removes one      *)
(* guard; "none" is the design. Calls.tla explains the notation.              *)
EXTENDS Naturals, Sequences

CONSTANTS
  Ids,                             \* correlations 1..n, used in order
  MaxCrash, MaxResend, MaxForget,  \* budgets of faults
  Bug

VARIABLES
  row,     \* rows of the asker: free, written, open (durable), settled, lost in a crash, gone with the session
  armed,   \* rows that have a timer in memory
  up,      \* whether the asker runs
  sent,    \* correlations whose request has left
  srv,     \* the callee's side of each call
  net,     \* messages in transit: a request stays until it is lost, which needs no step
  out,     \* outcomes in the order in which they were written
  todo,    \* outcomes that were written without their message, in a defect
  msgs,    \* delivered messages that wait for their turn
  turn,    \* the message of the current turn, in a sequence of at most one
  done,    \* messages whose turn has ended
  late,    \* correlations with a late answer
  flt      \* faults so far
vars == <<row, armed, up, sent, srv, net, out, todo, msgs, turn, done, late, flt>>

Kinds == {"answer", "failure", "timeout"}
O(c, k) == [c |-> c, k |-> k]
Range(s) == {s[i] : i \in 1..Len(s)}
Delivered == done \o turn \o msgs
Settled(c) == \E i \in 1..Len(out) : out[i].c = c

Init == /\ row = [c \in Ids |-> "free"]
        /\ armed = {} /\ up = TRUE /\ sent = {}
        /\ srv = [c \in Ids |-> "none"]
        /\ net = {}
        /\ out = <<>> /\ todo = {} /\ msgs = <<>> /\ turn = <<>> /\ done = <<>>
        /\ late = {}
        /\ flt = [crash |-> 0, resend |-> 0, forget |-> 0]

\* ------------------------------------------------------------------ asker
Detach(c) ==                     \* a turn writes a row
  /\ up /\ row[c] = "free" /\ \A d \in 1..c - 1 : row[d] # "free"
  /\ flt.forget = 0
  /\ row' = [row EXCEPT ![c] = "written"]
  /\ armed' = armed \cup {c}
  /\ UNCHANGED <<up, sent, srv, net, out, todo, msgs, turn, done, late, flt>>

Sync(c) ==
  /\ row[c] = "written"
  /\ row' = [row EXCEPT ![c] = "open"]
  /\ UNCHANGED <<armed, up, sent, srv, net, out, todo, msgs, turn, done, late, flt>>

Send(c) ==                       \* behind the gate
  /\ up /\ c \in armed /\ c \notin sent
  /\ row[c] = "open" \/ (Bug = "early" /\ row[c] = "written")
  /\ sent' = sent \cup {c}
  /\ net' = net \cup {O(c, "request")}
  /\ UNCHANGED <<row, armed, up, srv, out, todo, msgs, turn, done, late, flt>>

Resend(c) ==                     \* no answer yet; the callee repeats the outcome that it has recorded
  /\ up /\ c \in armed \cap sent /\ row[c] = "open" /\ flt.resend < MaxResend
  /\ flt' = [flt EXCEPT !.resend = @ + 1]
  /\ net' = net \cup {O(c, IF srv[c] \in Kinds THEN srv[c] ELSE "request")}
  /\ UNCHANGED <<row, armed, up, sent, srv, out, todo, msgs, turn, done, late>>

\* The row is still open, so this is its first outcome.
First(c, k) ==
  \/ row[c] = "open"
  \/ Bug = "again"     /\ k # "timeout" /\ row[c] = "settled" /\ flt.crash > 0
  \/ Bug = "afterward" /\ k = "timeout" /\ row[c] = "settled"
Settle(c, k) ==                  \* one batch: the outcome, the end of the row, and the message
  /\ up /\ First(c, k)
  /\ IF k = "timeout" THEN c \in armed /\ net' = net
                      ELSE O(c, k) \in net /\ net' = net \ {O(c, k)}
  /\ row' = [row EXCEPT ![c] = "settled"]
  /\ armed' = IF Bug = "afterward" THEN armed ELSE armed \ {c}
  /\ out' = IF Bug = "again" /\ Settled(c) THEN out ELSE Append(out, O(c, k))
  /\ IF Bug = "split" THEN todo' = todo \cup {O(c, k)} /\ msgs' = msgs
                      ELSE todo' = todo /\ msgs' = Append(msgs, O(c, k))
  /\ UNCHANGED <<up, sent, srv, turn, done, late, flt>>

Put(m) ==                        \* in a defect, the message in a batch of its own
  /\ up /\ m \in todo
  /\ todo' = todo \ {m}
  /\ msgs' = Append(msgs, m)
  /\ UNCHANGED <<row, armed, up, sent, srv, net, out, turn, done, late, flt>>

Late(c, k) ==                    \* recorded, and readable by its id
  /\ up /\ row[c] = "settled" /\ O(c, k) \in net
  /\ net' = net \ {O(c, k)}
  /\ late' = late \cup {c}
  /\ UNCHANGED <<row, armed, up, sent, srv, out, todo, msgs, turn, done, flt>>

Drop(c, k) ==                    \* the session is deleted, or the row was lost
  /\ up /\ row[c] \in {"gone", "lost"} /\ O(c, k) \in net
  /\ net' = net \ {O(c, k)}
  /\ UNCHANGED <<row, armed, up, sent, srv, out, todo, msgs, turn, done, late, flt>>

Start ==                         \* the turn of a message
  /\ up /\ turn = <<>> /\ msgs # <<>>
  /\ turn' = <<Head(msgs)>>
  /\ msgs' = Tail(msgs)
  /\ UNCHANGED <<row, armed, up, sent, srv, net, out, todo, done, late, flt>>

End ==
  /\ up /\ turn # <<>>
  /\ done' = done \o turn
  /\ turn' = <<>>
  /\ UNCHANGED <<row, armed, up, sent, srv, net, out, todo, msgs, late, flt>>

Crash ==                         \* what is not durable is lost, and so is the memory
  /\ up /\ flt.crash < MaxCrash
  /\ flt' = [flt EXCEPT !.crash = @ + 1]
  /\ up' = FALSE /\ armed' = {} /\ todo' = {}
  /\ row' = [c \in Ids |-> IF row[c] = "written" THEN "lost" ELSE row[c]]
  /\ IF Bug = "behind" THEN turn' = <<>> /\ msgs' = msgs \o turn       \* an interrupted turn is repeated last
                       ELSE UNCHANGED <<turn, msgs>>
  /\ UNCHANGED <<sent, srv, net, out, done, late>>

Restart ==                       \* a row whose time has passed meanwhile times out at once
  /\ ~up
  /\ up' = TRUE
  /\ armed' = IF Bug = "norearm" THEN {} ELSE {c \in Ids : row[c] = "open"}
  /\ UNCHANGED <<row, sent, srv, net, out, todo, msgs, turn, done, late, flt>>

Forget ==                        \* the session of the asker is deleted between two turns
  /\ up /\ flt.forget < MaxForget /\ turn = <<>> /\ msgs = <<>> /\ todo = {}
  /\ flt' = [flt EXCEPT !.forget = @ + 1]
  /\ armed' = {}
  /\ row' = [c \in Ids |-> IF row[c] \in {"written", "open"} THEN "gone" ELSE row[c]]
  /\ UNCHANGED <<up, sent, srv, net, out, todo, msgs, turn, done, late>>

\* ------------------------------------------------------------------ callee
Admit(c) ==
  /\ O(c, "request") \in net /\ srv[c] = "none"
  /\ srv' = [srv EXCEPT ![c] = "run"]
  /\ net' = net \ {O(c, "request")}
  /\ UNCHANGED <<row, armed, up, sent, out, todo, msgs, turn, done, late, flt>>

Reply(c, k) ==                   \* k = "failure": also a crash of its agent, and its cancellation
  /\ srv[c] = "run" /\ k \in {"answer", "failure"}
  /\ srv' = [srv EXCEPT ![c] = k]
  /\ net' = net \cup {O(c, k)}
  /\ UNCHANGED <<row, armed, up, sent, out, todo, msgs, turn, done, late, flt>>

Calm == \/ \E c \in Ids : Detach(c) \/ Sync(c) \/ Send(c) \/ Admit(c) \/ Resend(c)
        \/ \E c \in Ids, k \in Kinds : Settle(c, k) \/ Late(c, k) \/ Drop(c, k) \/ Reply(c, k)
        \/ \E c \in Ids, k \in Kinds : Put(O(c, k))
        \/ Start \/ End \/ Restart
Next == Calm \/ Crash \/ Forget
Spec == Init /\ [][Next]_vars
\* Nothing is said of the network and the callee: the timer is the backstop.
LiveSpec == Spec /\ WF_vars(Restart) /\ WF_vars(Start) /\ WF_vars(End)
                 /\ (\A c \in Ids : WF_vars(Settle(c, "timeout")))
                 /\ (\A c \in Ids, k \in Kinds : WF_vars(Put(O(c, k))))

\* ---------------------------------------------------------------- properties
TypeOK == /\ \A c \in Ids : /\ row[c] \in {"free", "written", "open", "settled", "lost", "gone"}
                            /\ srv[c] \in {"none", "run"} \cup Kinds
          /\ armed \subseteq Ids /\ Len(turn) <= 1
\* A correlation has one outcome: the first of answer, failure and time-out.
OneOutcomePerCorrelation == \A i, j \in 1..Len(out) : out[i].c = out[j].c => i = j
\* Its message is in the transcript once.
NothingDeliveredTwice == \A i, j \in 1..Len(Delivered) : Delivered[i].c = Delivered[j].c => i = j
\* Messages have their turns in the order of the outcomes.
Place(c) == CHOOSE i \in 1..Len(out) : out[i].c = c /\ \A j \in 1..i - 1 : out[j].c # c
DeliveredInOrder == \A i, j \in 1..Len(Delivered) : i < j => Place(Delivered[i].c) <= Place(Delivered[j].c)
\* Whatever was sent comes back as the message of a turn, unless its session was deleted.
EveryPendingEnds == \A c \in Ids : c \in sent ~> (\E k \in Kinds : O(c, k) \in Range(done)) \/ row[c] = "gone"

\* ---------------------------------------------- what must be possible: each must be violated
Not_LateAnswer   == late = {}
Not_OverCrash    == ~(flt.crash > 0 /\ \E c \in Ids : O(c, "answer") \in Range(Delivered) /\ row[c] = "settled")
Not_TwoWait      == Len(msgs) < 2
Not_OtherOrder   == ~(Len(out) > 1 /\ out[1].c > out[2].c)
Not_AnswerOfGone == [][~(\E c \in Ids : row[c] = "gone" /\ net' # net /\ O(c, "answer") \in net \ net')]_vars
=============================================================================
