-------------------------------- MODULE Rows --------------------------------
(* A log in a database that several nodes share: how a batch becomes a        *)
(* transaction, when its result is lost, and what an open transaction stops.  *)
(* Placement.tla says who owns the log and until when.                        *)
(*                                                                            *)
(* The row of the log has its owner, epoch and head. A transaction compares   *)
(* all three and moves the head, which locks the row until it ends. A node    *)
(* that is cut off while its transaction is open leaves the row locked; no    *)
(* time-out of the database ends that. A node without a result asks the row   *)
(* for it, and sends its batch again if the head has not moved; the earlier   *)
(* transaction may still arrive. A node whose lease is over is replaced by a  *)
(* claim, which first ends the transaction that the node has left open. `Bug` *)
(* removes one guard; "none" is the design. Calls.tla explains the notation.  *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Nodes, None, Ids, MaxEpoch, MaxBreak, MaxExpire, Bug

VARIABLES row,     \* owner, epoch, and the stored calls: the head is their number
          lease,   \* the nodes whose lease is valid
          lock,    \* the open transaction, or Free
          sent,    \* transactions on their way to the database
          node,    \* per node: whether it is active or cut off; epoch; head; the call that it writes, and what it knows of it
          acked,   \* acknowledged calls
          flt      \* faults so far
vars == <<row, lease, lock, sent, node, acked, flt>>

Idle == [st |-> "idle", epoch |-> 0, head |-> 0, run |-> 0, tx |-> "none"]
Free == [n |-> None, epoch |-> 0, prev |-> 0, c |-> 0]
Logged == {row.log[i].c : i \in 1..Len(row.log)}
Tx(n)  == [n |-> n, epoch |-> node[n].epoch, prev |-> node[n].head, c |-> node[n].run]

Init == /\ row = [owner |-> None, epoch |-> 0, log |-> <<>>]
        /\ lease = {} /\ lock = Free /\ sent = {} /\ acked = {}
        /\ node = [n \in Nodes |-> Idle]
        /\ flt = [break |-> 0, expire |-> 0]

\* ------------------------------------------------------------------ owners
Orphan == row.owner = None \/ row.owner \notin lease
Claim(n) ==                      \* one transaction: end what the former owner has left open, take the log, read it
  /\ node[n].st = "idle" /\ Orphan /\ row.epoch < MaxEpoch
  /\ Bug = "waits" => lock = Free
  /\ lock' = Free
  /\ row' = [row EXCEPT !.owner = n, !.epoch = @ + 1]
  /\ lease' = (lease \ {row.owner}) \cup {n}
  /\ node' = [node EXCEPT ![n] = [Idle EXCEPT !.st = "active", !.epoch = row'.epoch, !.head = Len(row.log)]]
  /\ UNCHANGED <<sent, acked, flt>>
Expire(n) ==                     \* the node does not renew its lease, and may not know that it is over
  /\ n \in lease /\ flt.expire < MaxExpire /\ flt' = [flt EXCEPT !.expire = @ + 1]
  /\ lease' = lease \ {n}
  /\ UNCHANGED <<row, lock, sent, node, acked>>
CutOff(n) ==                     \* for good: nothing that it has begun goes on by itself. Its lease runs out
  /\ node[n].st = "active" /\ flt.expire < MaxExpire /\ flt' = [flt EXCEPT !.expire = @ + 1]
  /\ node' = [node EXCEPT ![n].st = "cut"]
  /\ lease' = lease \ {n}
  /\ UNCHANGED <<row, lock, sent, acked>>
Notice(n) ==                     \* by the clock, or by the answer to its renewal: it drops what it has
  /\ node[n].st = "active" /\ (row.owner # n \/ row.epoch # node[n].epoch \/ n \notin lease)
  /\ node' = [node EXCEPT ![n] = Idle]
  /\ UNCHANGED <<row, lease, lock, sent, acked, flt>>
Rejoin(n) ==                     \* as another member, which knows nothing
  /\ node[n].st = "cut"
  /\ node' = [node EXCEPT ![n] = Idle]
  /\ UNCHANGED <<row, lease, lock, sent, acked, flt>>

\* ------------------------------------------------------------------ batches
Begin(n, c) ==                   \* a call that is not stored; one that is has its answer already
  /\ node[n].st = "active" /\ node[n].run = 0 /\ c \notin Logged
  /\ node' = [node EXCEPT ![n].run = c, ![n].tx = "new"]
  /\ UNCHANGED <<row, lease, lock, sent, acked, flt>>
Send(n) ==
  /\ node[n].st = "active" /\ node[n].tx = "new"
  /\ sent' = sent \cup {Tx(n)}
  /\ node' = [node EXCEPT ![n].tx = "sent"]
  /\ UNCHANGED <<row, lease, lock, acked, flt>>
Break(n) ==                      \* the connection is lost before the result: anything may be true
  /\ node[n].st = "active" /\ node[n].tx = "sent"
  /\ flt.break < MaxBreak /\ flt' = [flt EXCEPT !.break = @ + 1]
  /\ node' = [node EXCEPT ![n].tx = "unknown"]
  /\ UNCHANGED <<row, lease, lock, sent, acked>>

Waits(t) == node[t.n].st = "active" /\ node[t.n].tx = "sent" /\ Tx(t.n) = t
Passes(t) == /\ (row.owner = t.n /\ row.epoch = t.epoch) \/ Bug = "ownerless"
             /\ Len(row.log) = t.prev \/ Bug = "headless"
Open(t) ==                       \* it waits for the lock, and then compares the row
  /\ t \in sent /\ lock = Free
  /\ sent' = sent \ {t}
  /\ lock' = IF Passes(t) THEN t ELSE Free
  /\ node' = IF ~Passes(t) /\ Waits(t) THEN [node EXCEPT ![t.n] = Idle] ELSE node   \* it is told that the log is not its own
  /\ UNCHANGED <<row, lease, acked, flt>>
Commit ==
  /\ lock # Free
  /\ row' = [row EXCEPT !.log = Append(@, [c |-> lock.c, epoch |-> lock.epoch, at |-> row.epoch])]
  /\ lock' = Free
  /\ IF Waits(lock)
     THEN /\ node' = [node EXCEPT ![lock.n].run = 0, ![lock.n].tx = "none", ![lock.n].head = @ + 1]
          /\ acked' = acked \cup {lock.c}
     ELSE UNCHANGED <<node, acked>>
  /\ UNCHANGED <<lease, sent, flt>>
RollBack ==                      \* the database sees that the connection is lost
  /\ lock # Free /\ ~Waits(lock)
  /\ lock' = Free
  /\ UNCHANGED <<row, lease, sent, node, acked, flt>>
Settle(n) ==                     \* reads the row, for which it waits
  /\ node[n].st = "active" /\ node[n].tx = "unknown" /\ lock = Free
  /\ LET mine   == row.owner = n /\ row.epoch = node[n].epoch
         stored == Len(row.log) > node[n].head \/ Bug = "hopes"
     IN /\ node' = [node EXCEPT ![n] =
               IF ~mine THEN Idle
               ELSE IF stored THEN [@ EXCEPT !.run = 0, !.tx = "none", !.head = Len(row.log)]
               ELSE [@ EXCEPT !.tx = "new"]]
        /\ acked' = IF mine /\ stored THEN acked \cup {node[n].run} ELSE acked
  /\ UNCHANGED <<row, lease, lock, sent, flt>>

Next == \/ \E n \in Nodes : Claim(n) \/ Expire(n) \/ CutOff(n) \/ Notice(n) \/ Rejoin(n) \/ Send(n) \/ Break(n) \/ Settle(n)
        \/ \E n \in Nodes, c \in Ids : Begin(n, c)
        \/ \E t \in sent : Open(t)
        \/ Commit \/ RollBack
Spec == Init /\ [][Next]_vars
\* An open transaction need not end: its node may be cut off, and the database does not see it.
FairSpec == Spec /\ \A n \in Nodes : WF_vars(Claim(n)) /\ WF_vars(Notice(n)) /\ WF_vars(Rejoin(n))

\* ---------------------------------------------------------------- properties
TypeOK == /\ row.owner \in Nodes \cup {None} /\ row.epoch \in 0..MaxEpoch
          /\ lease \subseteq Nodes /\ (lock = Free \/ lock.n \in Nodes)
          /\ \A n \in Nodes : node[n].tx = "none" <=> node[n].run = 0
\* Each write is made under the epoch of the row, and a call is stored once.
FencedWrites == /\ \A i \in 1..Len(row.log) : row.log[i].epoch = row.log[i].at
                /\ \A i, j \in 1..Len(row.log) : i < j => row.log[i].c # row.log[j].c
\* What was acknowledged is stored.
AckedIsStored == acked \subseteq Logged
\* A log whose owner has no lease is claimed again.
OwnedAgain == []<>(row.owner \in lease \/ row.epoch = MaxEpoch)

\* ---------------------------------------------- what must be possible: each must be violated
Not_UnknownStored == ~\E n \in Nodes : node[n].tx = "unknown" /\ node[n].run \in Logged
Not_UnknownLost   == [][~\E n \in Nodes : Settle(n) /\ node'[n].tx = "new"]_vars
Not_ArrivesTwice  == ~\E t \in sent : node[t.n].tx = "sent" /\ Tx(t.n).c # t.c /\ t.c \in Logged
Not_EndedByClaim  == [][~\E n \in Nodes : Claim(n) /\ lock # Free]_vars
Not_LateOpen      == [][~\E t \in sent : Open(t) /\ t.epoch < row.epoch]_vars

Sym == Permutations(Nodes)
=============================================================================
