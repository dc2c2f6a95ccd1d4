----------------------------- MODULE Placement -----------------------------
(* Ownership of an actor while it is called. At most one node serves it.      *)
(* Whatever a node believes, it cannot overwrite the writes of a later owner. *)
(* An unserved actor is served again.                                         *)
(*                                                                            *)
(* The model has one log with one actor, and a row for it in the database     *)
(* that also stores the log: its owner, epoch and lease. A write names its    *)
(* node and epoch; its transaction fails unless the row has both. A node      *)
(* counts its lease from the time of its request, less a margin, by a clock   *)
(* that may be slow or fast. It renews the lease, and counts the new period   *)
(* from the time of that request. While its lease has run out it does nothing *)
(* but ask for a renewal, which it gets if nobody has claimed the log: leases *)
(* survive an outage of the database. Each node has one message in transit,   *)
(* to the database or back, which may be lost or arrive at any later time. A  *)
(* paused or partitioned node is one that takes no step, or whose messages    *)
(* wait, while time passes. `Bug` removes one guard; "none" is the design.    *)
(* Calls.tla explains the notation.                                           *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Nodes, None, Ids,
          Lease, Margin,        \* length of a lease; the part of it that a node leaves unused
          MaxLag, MaxLead,      \* maximum lag of a node's clock within one lease, and maximum lead
          MaxEpoch, MaxCrash, MaxRenew,   \* budgets
          Calm, MaxLate,        \* TRUE: time passes only if no other step is possible, with at most this many exceptions
          Bug

VARIABLES reg,     \* row of the log: owner, epoch, remaining time of the lease
          node,    \* per node: its state; epoch, remaining time and lag of its lease; remaining time and
                   \* lag of a requested renewal; the calls it knows as completed; the call it runs
          wire,    \* per node: its message to the database, or the response
          store,   \* the log of accepted writes
          writes,  \* writes in transit
          flt      \* faults and other actions of the environment so far
vars == <<reg, node, wire, store, writes, flt>>

Idle == [st |-> "idle", epoch |-> 0, ttl |-> 0, lag |-> 0, next |-> 0, nlag |-> 0, done |-> {}, run |-> 0]
Dec(x)     == IF x > 0 THEN x - 1 ELSE 0
Max(x, y)  == IF x > y THEN x ELSE y
Min(x, y)  == IF x < y THEN x ELSE y
Own        == IF Bug = "margin" THEN Lease ELSE Lease - Margin
Serving(n) == node[n].st = "active" /\ (node[n].ttl > 0 \/ Bug = "unchecked")
Logged     == {store[i].c : i \in 1..Len(store)}
Msg(k, e)  == [k |-> k, epoch |-> e]
Nothing    == Msg("none", 0)
Free       == reg.ttl = 0

Init == /\ reg = [owner |-> None, epoch |-> 0, ttl |-> 0]
        /\ node = [n \in Nodes |-> Idle]
        /\ wire = [n \in Nodes |-> Nothing]
        /\ store = <<>>
        /\ writes = {}
        /\ flt = [crash |-> 0, lead |-> 0, renew |-> 0, late |-> 0]

\* ------------------------------------------------------------------ the lease
Seek(n) ==                       \* requests a lease that it saw free: the lease is counted from here
  /\ node[n].st = "idle" /\ wire[n] = Nothing
  /\ Free \/ Bug = "steal"
  /\ Bug = "once" => reg.owner = None
  /\ node' = [node EXCEPT ![n] = [Idle EXCEPT !.st = "seeking", !.ttl = Own]]
  /\ wire' = [wire EXCEPT ![n] = Msg("claim", 0)]
  /\ UNCHANGED <<reg, store, writes, flt>>

Renew(n) ==                      \* requests a renewal while it serves, or after its lease has run out
  /\ node[n].st = "active" /\ wire[n] = Nothing
  /\ flt.renew < MaxRenew /\ flt' = [flt EXCEPT !.renew = @ + 1]
  /\ node' = IF Bug = "hopes" THEN [node EXCEPT ![n].ttl = Own, ![n].lag = 0]
             ELSE [node EXCEPT ![n].next = Own, ![n].nlag = 0]
  /\ wire' = [wire EXCEPT ![n] = Msg("renew", node[n].epoch)]
  /\ UNCHANGED <<reg, store, writes>>

Deactivate(n) ==                 \* stops serving and releases the lease
  /\ node[n].st = "active" /\ wire[n] = Nothing
  /\ node' = [node EXCEPT ![n] = Idle]
  /\ wire' = [wire EXCEPT ![n] = Msg("release", node[n].epoch)]
  /\ UNCHANGED <<reg, store, writes, flt>>

\* If nothing is written, epochs need not differ. They stop at MaxEpoch, so that time may pass without
\* bound.
Later(e)   == IF Ids = {} THEN Min(e + 1, MaxEpoch) ELSE e + 1
Holds(n)   == reg.owner = n /\ reg.epoch = wire[n].epoch
Back(n, k, e) == wire' = [wire EXCEPT ![n] = Msg(k, e)]
Grant(n) ==                      \* the database processes a message: it grants, renews, ends or denies a lease
  /\ CASE wire[n].k = "claim" ->
            IF Free \/ Bug = "steal"
            THEN LET e == IF Bug = "reuse" /\ reg.epoch > 0 THEN reg.epoch ELSE Later(reg.epoch)
                 IN /\ e <= MaxEpoch
                    /\ reg' = [owner |-> n, epoch |-> e, ttl |-> Lease] /\ Back(n, "granted", e)
            ELSE Back(n, "no", 0) /\ UNCHANGED reg
       [] wire[n].k = "renew" ->
            IF Holds(n) \/ Bug = "renewany"
            THEN reg' = [reg EXCEPT !.ttl = Lease] /\ Back(n, "renewed", wire[n].epoch)
            ELSE Back(n, "no", 0) /\ UNCHANGED reg
       [] wire[n].k = "release" ->
            /\ reg' = IF Holds(n) \/ Bug = "release" THEN [reg EXCEPT !.ttl = 0, !.owner = None] ELSE reg
            /\ wire' = [wire EXCEPT ![n] = Nothing]
       [] OTHER -> FALSE
  /\ UNCHANGED <<node, store, writes, flt>>

Drop(n) ==                       \* the message is lost, or its receiver no longer waits for it
  /\ wire[n] # Nothing /\ ~Calm
  /\ wire' = [wire EXCEPT ![n] = Nothing]
  /\ UNCHANGED <<reg, node, store, writes, flt>>

Claim(n) ==                      \* the node receives its lease; if it has stopped waiting, it lets the lease expire
  /\ wire[n].k = "granted"
  /\ node' = IF node[n].st # "seeking" THEN node
             ELSE [node EXCEPT ![n].st = "claimed", ![n].epoch = wire[n].epoch, ![n].ttl = IF Bug = "receipt" THEN Own ELSE @]
  /\ wire' = [wire EXCEPT ![n] = Nothing]
  /\ UNCHANGED <<reg, store, writes, flt>>

Mine(n) == node[n].st = "active" /\ node[n].epoch = wire[n].epoch
Extend(n) ==                     \* the node receives its renewal, and gets the rest of the period counted from the request
  /\ wire[n].k = "renewed"
  /\ node' = IF ~Mine(n) \/ Bug = "hopes" THEN node
             ELSE [node EXCEPT ![n].ttl = IF Bug = "newtime" THEN Own ELSE node[n].next, ![n].lag = node[n].nlag,
                               ![n].next = 0, ![n].nlag = 0]
  /\ wire' = [wire EXCEPT ![n] = Nothing]
  /\ UNCHANGED <<reg, store, writes, flt>>

Lose(n) ==                       \* the lease has expired or was never granted; by the clock, or by the response of the database
  /\ \/ node[n].st \in {"seeking", "claimed", "active"} /\ node[n].ttl = 0 /\ UNCHANGED wire
     \/ wire[n].k = "no" /\ wire' = [wire EXCEPT ![n] = Nothing]
  /\ node' = [node EXCEPT ![n] = IF node[n].st = "down" THEN @ ELSE Idle]
  /\ UNCHANGED <<reg, store, writes, flt>>

\* ------------------------------------------------------------------ the actor
Activate(n) ==                   \* reads the state; since the claim no former owner can have written
  /\ node[n].st = "claimed"
  /\ node' = [node EXCEPT ![n].st = "active", ![n].done = Logged]
  /\ UNCHANGED <<reg, wire, store, writes, flt>>

Start(n, c) ==                   \* the lease is checked before each message
  /\ Serving(n) /\ node[n].run = 0
  /\ c \notin node[n].done \/ Bug = "redo"
  /\ node' = [node EXCEPT ![n].run = c]
  /\ UNCHANGED <<reg, wire, store, writes, flt>>

Reply(n) ==                      \* the turn ends: its write is sent; the reply waits until it is accepted
  /\ node[n].run # 0
  /\ LET w == [n |-> n, epoch |-> node[n].epoch, c |-> node[n].run]
     IN w \notin writes /\ writes' = writes \cup {w}
  /\ UNCHANGED <<reg, node, wire, store, flt>>

Commit(n, e, c) ==               \* one transaction: compare the row, append. The node gets the result
  LET w    == [n |-> n, epoch |-> e, c |-> c]
      same == node[n].st = "active" /\ node[n].epoch = e /\ node[n].run = c
      ok   == \/ reg.owner = n /\ reg.epoch = e
              \/ Bug = "nofence"
              \/ Bug = "epochless" /\ reg.owner = n    \* compares the owner alone
  IN /\ w \in writes /\ writes' = writes \ {w}
     /\ store' = IF ok THEN Append(store, [epoch |-> e, c |-> c]) ELSE store
     /\ node' = [node EXCEPT ![n] = IF ~same THEN @ ELSE IF ok THEN [@ EXCEPT !.run = 0, !.done = @ \cup {c}] ELSE Idle]
     /\ UNCHANGED <<reg, wire, flt>>

\* ------------------------------------------------------------------ nodes and time
Crash(n) ==                      \* messages it has sent remain in transit
  /\ node[n].st # "down" /\ flt.crash < MaxCrash
  /\ flt' = [flt EXCEPT !.crash = @ + 1]
  /\ node' = [node EXCEPT ![n] = [Idle EXCEPT !.st = "down"]]
  /\ UNCHANGED <<reg, wire, store, writes>>
Restart(n) ==
  /\ node[n].st = "down"
  /\ node' = [node EXCEPT ![n] = Idle]
  /\ UNCHANGED <<reg, wire, store, writes, flt>>

Behind(r) == [r EXCEPT !.lag = IF r.ttl > 0 THEN @ + 1 ELSE @, !.nlag = IF r.next > 0 THEN @ + 1 ELSE @]
Ahead(r)  == [r EXCEPT !.ttl = Dec(@), !.next = Dec(@)]
MayLag(r) == /\ r.ttl > 0 \/ r.next > 0
             /\ r.ttl > 0 => r.lag < MaxLag
             /\ r.next > 0 => r.nlag < MaxLag
Busy == \E n \in Nodes : wire[n] # Nothing \/ node[n].st \in {"claimed", "down"} \/ (node[n].st = "idle" /\ Free)
Tick(slow) ==                    \* time passes by the clock of the database, but not by those in slow
  /\ \A n \in slow : MayLag(node[n])
  /\ IF Calm /\ Busy THEN flt.late < MaxLate /\ flt' = [flt EXCEPT !.late = @ + 1] ELSE UNCHANGED flt
  /\ reg' = IF Bug = "immortal" THEN reg ELSE [reg EXCEPT !.ttl = Dec(@)]
  /\ node' = [n \in Nodes |-> IF n \in slow THEN Behind(node[n]) ELSE Ahead(node[n])]
  /\ UNCHANGED <<wire, store, writes>>
Hurry(n) ==                      \* time passes by a fast clock alone
  /\ flt.lead < MaxLead /\ Ahead(node[n]) # node[n]
  /\ flt' = [flt EXCEPT !.lead = @ + 1]
  /\ node' = [node EXCEPT ![n] = Ahead(@)]
  /\ UNCHANGED <<reg, wire, store, writes>>

Next == \/ \E n \in Nodes : \/ Seek(n) \/ Renew(n) \/ Deactivate(n) \/ Grant(n) \/ Drop(n) \/ Claim(n) \/ Extend(n) \/ Lose(n)
                            \/ Activate(n) \/ Reply(n) \/ Crash(n) \/ Restart(n) \/ Hurry(n)
        \/ \E n \in Nodes, c \in Ids : Start(n, c)
        \/ \E n \in Nodes, e \in 1..MaxEpoch, c \in Ids : Commit(n, e, c)
        \/ \E slow \in SUBSET Nodes : Tick(slow)
Spec == Init /\ [][Next]_vars

\* Time, messages, and the steps and restarts of nodes are fair. A lease need not be released.
FairSpec == Spec /\ WF_vars(Tick({}))
                 /\ \A n \in Nodes : /\ WF_vars(Seek(n)) /\ WF_vars(Grant(n)) /\ WF_vars(Claim(n)) /\ WF_vars(Extend(n))
                                     /\ WF_vars(Lose(n)) /\ WF_vars(Activate(n)) /\ WF_vars(Restart(n))

\* ---------------------------------------------------------------- properties
TypeOK == /\ reg.ttl \in 0..Lease /\ reg.epoch \in 0..MaxEpoch
          /\ \A n \in Nodes : node[n].ttl \in 0..Lease /\ node[n].next \in 0..Lease /\ (node[n].run # 0 => node[n].st = "active")
\* At most one node serves the actor. True while no clock lags by more than the margin.
SingleActivation == Cardinality({n \in Nodes : Serving(n)}) <= 1
\* No write follows that of a later owner, and none misses earlier writes: a call is performed once.
\* True regardless of clocks.
FencedWrites == \A i, j \in 1..Len(store) : i < j =>
  store[i].epoch <= store[j].epoch /\ store[i].c # store[j].c
\* A log without an owner gets one again, after any crashes and partitions.
OwnedAgain == []<>(\E n \in Nodes : Serving(n))

\* Alias with a fixed name: here an actor is called while it moves.
SingleActivationDuringCall == SingleActivation

\* ---------------------------------------------- what must be possible: each must be violated
Not_HandOver     == ~\E i, j \in 1..Len(store) : store[i].epoch < store[j].epoch
Not_MoveInCall   == ~\E m, n \in Nodes : /\ node[m].run # 0 /\ node[m].run = node[n].run
                                         /\ node[m].epoch < node[n].epoch
Not_TwoServing   == SingleActivation
Not_WriteTooLate == ~\E w \in writes : w.epoch < reg.epoch
Not_Renewed      == [][~\E n \in Nodes : Extend(n) /\ node'[n].ttl > node[n].ttl]_vars
Not_RenewTooLate == ~\E m, n \in Nodes : wire[m].k = "renew" /\ Serving(n) /\ node[n].epoch > wire[m].epoch
Not_RenewInTime  == [][~\E n \in Nodes : Extend(n) /\ node[n].st = "active" /\ node[n].ttl = 0 /\ node'[n].ttl > 0]_vars
Not_DeadRenews   == [][~\E n \in Nodes : Grant(n) /\ node[n].st = "down" /\ wire'[n].k = "renewed"]_vars
Not_LateRenewal  == [][~\E n \in Nodes : Grant(n) /\ Free /\ wire'[n].k = "renewed"]_vars
Not_NobodysLease == ~\E n \in Nodes : reg.owner = n /\ ~Free /\ node[n].st = "idle" /\ wire[n] = Nothing
Not_FastClock    == ~\E n \in Nodes : flt.lead > 0 /\ node[n].st = "active" /\ node[n].ttl = 0 /\ reg.owner = n /\ ~Free

Sym == Permutations(Nodes)
=============================================================================
