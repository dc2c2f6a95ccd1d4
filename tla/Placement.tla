----------------------------- MODULE Placement -----------------------------
(* Where an actor lives while it is called: at most one node serves it, and   *)
(* whatever a node believes, it cannot overwrite what a later owner did.      *)
(*                                                                            *)
(* One actor, a registry that hands out a lease with an epoch, and a store    *)
(* that refuses a write whose epoch is lower than one it has seen. A node     *)
(* counts its lease from the moment it asked, less a margin, by a clock that  *)
(* may run slow. A paused or cut-off node is one that takes no step while     *)
(* time passes; a write may land at any later time.                           *)
(* `Bug` removes one guard; "none" is the design. See Calls.tla on reading.   *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Nodes, None, Ids,
          Lease, Margin,        \* length of a lease; what a node leaves of it unused
          MaxLag,               \* by how much a node's clock may be late within one lease
          MaxEpoch, MaxCrash,   \* budgets
          Bug

VARIABLES reg,     \* registry: owner, epoch, what is left of the lease
          node,    \* per node: how far it is, its epoch, lease and lag; the calls it knows done; the call it runs
          store,   \* highest epoch seen; the log of what was written
          writes,  \* writes on their way
          crashes
vars == <<reg, node, store, writes, crashes>>

Idle == [st |-> "idle", epoch |-> 0, ttl |-> 0, lag |-> 0, done |-> {}, run |-> 0]
Dec(x)     == IF x > 0 THEN x - 1 ELSE 0
Max(x, y)  == IF x > y THEN x ELSE y
Own        == IF Bug = "margin" THEN Lease ELSE Lease - Margin
Serving(n) == node[n].st = "active" /\ (node[n].ttl > 0 \/ Bug = "unchecked")
Logged     == {store.log[i].c : i \in 1..Len(store.log)}

Init == /\ reg = [owner |-> None, epoch |-> 0, ttl |-> 0]
        /\ node = [n \in Nodes |-> Idle]
        /\ store = [epoch |-> 0, log |-> <<>>]
        /\ writes = {}
        /\ crashes = 0

Seek(n) ==                       \* asks for the lease: its time runs from here
  /\ node[n].st = "idle"
  /\ node' = [node EXCEPT ![n] = [Idle EXCEPT !.st = "seeking", !.ttl = Own]]
  /\ UNCHANGED <<reg, store, writes, crashes>>

Claim(n) ==                      \* the registry grants it
  /\ node[n].st = "seeking" /\ reg.epoch < MaxEpoch
  /\ reg.ttl = 0 \/ Bug = "steal"
  /\ LET e == IF Bug = "reuse" /\ reg.epoch > 0 THEN reg.epoch ELSE reg.epoch + 1
     IN /\ reg' = [owner |-> n, epoch |-> e, ttl |-> Lease]
        /\ node' = [node EXCEPT ![n].st = "claimed", ![n].epoch = e]
  /\ UNCHANGED <<store, writes, crashes>>

Lose(n) ==                       \* the lease is over, or was never granted
  /\ node[n].st \in {"seeking", "claimed", "active"} /\ node[n].ttl = 0
  /\ node' = [node EXCEPT ![n] = Idle]
  /\ UNCHANGED <<reg, store, writes, crashes>>

Activate(n) ==                   \* one transaction: raise the fence, read the state
  /\ node[n].st = "claimed"
  /\ store' = IF Bug = "noraise" THEN store ELSE [store EXCEPT !.epoch = Max(@, node[n].epoch)]
  /\ node' = [node EXCEPT ![n].st = "active", ![n].done = Logged, ![n].ttl = IF Bug = "receipt" THEN Own ELSE @]
  /\ UNCHANGED <<reg, writes, crashes>>

Deactivate(n) ==                 \* the node gives the lease back
  /\ node[n].st = "active"
  /\ reg' = IF reg.epoch = node[n].epoch \/ Bug = "release" THEN [reg EXCEPT !.ttl = 0] ELSE reg
  /\ node' = [node EXCEPT ![n] = Idle]
  /\ UNCHANGED <<store, writes, crashes>>

Start(n, c) ==                   \* the lease is looked at before each message
  /\ Serving(n) /\ node[n].run = 0
  /\ c \notin node[n].done \/ Bug = "redo"
  /\ node' = [node EXCEPT ![n].run = c]
  /\ UNCHANGED <<reg, store, writes, crashes>>

Reply(n) ==                      \* the turn ends: its write leaves; the reply waits until it has landed
  /\ node[n].run # 0
  /\ LET w == [n |-> n, epoch |-> node[n].epoch, c |-> node[n].run]
     IN w \notin writes /\ writes' = writes \cup {w}
  /\ UNCHANGED <<reg, node, store, crashes>>

Commit(n, e, c) ==               \* the write lands, and the node hears what became of it
  LET w    == [n |-> n, epoch |-> e, c |-> c]
      same == node[n].st = "active" /\ node[n].epoch = e /\ node[n].run = c
      ok   == e >= store.epoch \/ Bug = "nofence"
  IN /\ w \in writes /\ writes' = writes \ {w}
     /\ store' = IF ok THEN [epoch |-> Max(store.epoch, e), log |-> Append(store.log, [epoch |-> e, c |-> c])] ELSE store
     /\ node' = [node EXCEPT ![n] = IF ~same THEN @ ELSE IF ok THEN [@ EXCEPT !.run = 0, !.done = @ \cup {c}] ELSE Idle]
     /\ UNCHANGED <<reg, crashes>>

Crash(n) ==
  /\ node[n].st # "down" /\ crashes < MaxCrash
  /\ crashes' = crashes + 1
  /\ node' = [node EXCEPT ![n] = [Idle EXCEPT !.st = "down"]]
  /\ UNCHANGED <<reg, store, writes>>
Restart(n) ==
  /\ node[n].st = "down"
  /\ node' = [node EXCEPT ![n] = Idle]
  /\ UNCHANGED <<reg, store, writes, crashes>>

Tick(slow) ==                    \* time passes by the registry's clock; by those in slow it does not
  /\ \A n \in slow : node[n].ttl > 0 /\ node[n].lag < MaxLag
  /\ reg' = [reg EXCEPT !.ttl = Dec(@)]
  /\ node' = [n \in Nodes |-> IF n \in slow THEN [node[n] EXCEPT !.lag = @ + 1] ELSE [node[n] EXCEPT !.ttl = Dec(@)]]
  /\ UNCHANGED <<store, writes, crashes>>

Next == \/ \E n \in Nodes : \/ Seek(n) \/ Claim(n) \/ Lose(n) \/ Activate(n) \/ Deactivate(n) \/ Reply(n)
                            \/ Crash(n) \/ Restart(n)
        \/ \E n \in Nodes, c \in Ids : Start(n, c)
        \/ \E n \in Nodes, e \in 1..MaxEpoch, c \in Ids : Commit(n, e, c)
        \/ \E slow \in SUBSET Nodes : Tick(slow)
Spec == Init /\ [][Next]_vars

\* ---------------------------------------------------------------- properties
TypeOK == /\ reg.ttl \in 0..Lease /\ reg.epoch \in 0..MaxEpoch
          /\ \A n \in Nodes : node[n].ttl \in 0..Lease /\ (node[n].run # 0 => node[n].st = "active")
\* At most one node serves the actor. True while no clock is later than the margin.
SingleActivation == Cardinality({n \in Nodes : Serving(n)}) <= 1
\* No write lands after a later owner's, and none that does not know what was written before:
\* a call is done once. True whatever the clocks do.
FencedWrites == \A i, j \in 1..Len(store.log) : i < j =>
  store.log[i].epoch <= store.log[j].epoch /\ store.log[i].c # store.log[j].c

\* Promised name of the same: here an actor is called while it moves.
SingleActivationDuringCall == SingleActivation

\* ---------------------------------------------- what must be possible: each must be violated
Not_HandOver     == ~\E i, j \in 1..Len(store.log) : store.log[i].epoch < store.log[j].epoch
Not_MoveInCall   == ~\E m, n \in Nodes : /\ node[m].run # 0 /\ node[m].run = node[n].run
                                         /\ node[m].epoch < node[n].epoch
Not_TwoServing   == SingleActivation
Not_WriteTooLate == ~\E w \in writes : w.epoch < store.epoch

Sym == Permutations(Nodes)
=============================================================================
