------------------------------- MODULE Waits -------------------------------
(* Calls that wait for each other in a cycle, and the refusal of one of them. *)
(*                                                                            *)
(* An actor with serial turns accepts no message while its turn waits. A call *)
(* thus waits for the turn that holds its callee or, if it has that turn, for *)
(* itself. A turn waits for every call it made. Two trees of calls, or two    *)
(* branches of one, can close these waits to a cycle that no chain shows. A   *)
(* cycle closes where a call queues behind a turn that waits. There a probe   *)
(* is sent along the waits (lap one). When it returns, it has found a cycle.  *)
(* Lap two checks each wait again and ends at the newest queued call of the   *)
(* cycle. That call is refused: it has not run yet, so nothing is undone.     *)
(*                                                                            *)
(* Cells keep no state for this: a probe reads the queue and the turn it      *)
(* visits. Correctness: a wait with given call, turn and epoch never          *)
(* reappears once it has ended; each wait existed before the probe returned   *)
(* and exists afterwards. Completeness: all waits of a cycle but the last     *)
(* exist when the last one appears, and its probe follows every branch.       *)
(*                                                                            *)
(* Each actor is in a cell of its own, so all communication is by message.    *)
(* Clocks are left out: an action that needs time may happen at any time. The *)
(* caller of each call is a constant, Par; its callee is explored. Calls.tla  *)
(* explains the notation. `Bug` removes one guard; "none" is the design.      *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Agents, Inter,      \* actors; those that are released while their turn waits
  Par,                \* a forest: call c is made by the turn of Par[c]; 0: by a client. Its size is that of Ids
  Plans,              \* functions from calls to callees
  HopMax,             \* hop limit of probes
  Keeps,              \* what crashes leave, see Crash
  MaxGiveUp, MaxDup, MaxDrop, MaxCrash,    \* budgets
  Bug

VARIABLES
  to,     \* callee of each call, chosen once
  up,     \* caller's side of each call: new, wait, ok, refused, gone
  at,     \* callee's side: none, queued, turn, done
  ep,     \* epoch of each actor's activation
  net,    \* messages in transit, unordered
  ref,    \* for the properties: each refusal, with its cycle and the facts at that time
  flt     \* faults and other actions of the environment so far
vars == <<to, up, at, ep, net, ref, flt>>

Ids == DOMAIN Par                              \* a larger id is a newer call
Max(S) == CHOOSE x \in S : \A y \in S : x >= y
RECURSIVE Above(_)
Above(c) == IF Par[c] = 0 THEN {} ELSE {Par[c]} \cup Above(Par[c])
Below(p) == {c \in Ids : Par[c] = p}
Nested == {c \in Ids : Par[c] # 0}             \* calls made by a turn
Msg(k, c) == [k |-> k, c |-> c]
IsProbe(m) == m.k \in {"probe", "confirm"}

\* ------------------------------------------------------------ state visible to one cell
Turns(a)  == {c \in Ids : at[c] = "turn" /\ to[c] = a}
Holder(a) == IF a \in Inter \/ Turns(a) = {} THEN 0 ELSE CHOOSE c \in Turns(a) : TRUE
Kids(t)   == IF t = 0 THEN {} ELSE {y \in Below(t) : up[y] = "wait"}      \* calls that turn t waits for
Box(a)    == {c \in Ids : at[c] = "queued" /\ to[c] = a}
Turn(c)   == CASE at[c] = "turn"   -> c                                  \* the turn that call c waits for
               [] at[c] = "queued" -> Holder(to[c])
               [] OTHER            -> 0
Seen(c)   == IF Bug = "holder" /\ at[c] = "queued" /\ Turns(to[c]) # {} THEN Max(Turns(to[c])) ELSE Turn(c)
Hop(c, t) == [call |-> c, turn |-> t, epoch |-> ep[to[c]]]
Queued(h) == h.call # h.turn
Next1(ring, n) == ring[(n % Len(ring)) + 1]

\* ------------------------------------------------------------ global state, not visible to cells
RECURSIVE Reach(_)
Reach(S) == LET T == S \cup UNION {Kids(Turn(x)) : x \in S} IN IF T = S THEN S ELSE Reach(T)
RECURSIVE Within(_, _)                         \* the same, within a number of hops
Within(S, n) == IF n = 0 THEN S ELSE Within(S \cup UNION {Kids(Turn(x)) : x \in S}, n - 1)
OnRing(c) == c \in Within(Kids(Turn(c)), HopMax - 1)
Stands(ring) == \A n \in 1..Len(ring) :
  LET h == ring[n]
  IN Turn(h.call) = h.turn /\ ep[to[h.call]] = h.epoch /\ Next1(ring, n).call \in Kids(h.turn)

Init ==
  /\ to \in {f \in Plans : \A c \in Ids : \A p \in Above(c) : f[c] # f[p]}   \* callees permitted by the check of the chain
  /\ up = [c \in Ids |-> IF Par[c] = 0 THEN "wait" ELSE "new"]
  /\ at = [c \in Ids |-> "none"]
  /\ ep = [a \in Agents |-> 1]
  /\ net = {Msg("req", c) : c \in Below(0)}
  /\ ref = {}
  /\ flt = [giveup |-> 0, dup |-> 0, drop |-> 0, crash |-> 0]

\* A delivered message leaves the network, or stays as a duplicate.
Take(m, keep) ==
  /\ m \in net
  /\ keep => flt.dup < MaxDup
  /\ flt' = IF keep THEN [flt EXCEPT !.dup = @ + 1] ELSE flt
Rest(m, keep) == IF keep THEN net ELSE net \ {m}
Keep == IF MaxDup = 0 THEN {FALSE} ELSE BOOLEAN

\* ------------------------------------------------------------ calls and turns
Ask(p, S) ==                                   \* turn p makes all calls of S and waits for all
  /\ at[p] = "turn" /\ Kids(p) = {} /\ S # {}
  /\ \A c \in S : up[c] = "new"
  /\ up' = [c \in Ids |-> IF c \in S THEN "wait" ELSE up[c]]
  /\ net' = net \cup {Msg("req", c) : c \in S}
  /\ UNCHANGED <<to, at, ep, ref, flt>>

\* A probe of call i continues to each call that turn t waits for; ring is its path so far.
Along(i, ring, t) ==
  IF Len(ring) > HopMax /\ Bug # "hops" THEN {}
  ELSE {[k |-> "probe", c |-> y, i |-> i, ring |-> ring] :
          y \in IF Bug = "branch" /\ Kids(t) # {} THEN {Max(Kids(t))} ELSE Kids(t)}
SetOut(c, t) == Along(c, <<Hop(c, t)>>, t)

Queue(c, keep) ==                              \* the call arrives; only here can a cycle close
  LET a == to[c]
      h == IF Bug = "holder" /\ Turns(a) # {} THEN Max(Turns(a)) ELSE Holder(a)
      probes == c \in Nested /\ ~(Bug = "second" /\ Box(a) # {})    \* no turn waits for a client's call
  IN /\ Take(Msg("req", c), keep)
     /\ at[c] = "none" \/ (Bug = "dedup" /\ at[c] = "done")
     /\ at' = [at EXCEPT ![c] = "queued"]
     /\ net' = Rest(Msg("req", c), keep) \cup IF probes THEN SetOut(c, h) ELSE {}
     /\ UNCHANGED <<to, up, ep, ref>>

Deliver(c) ==                                  \* a repeated request, or one whose cancel arrived before it
  /\ at[c] # "none"
  /\ Take(Msg("req", c), FALSE)
  /\ net' = net \ {Msg("req", c)}
  /\ UNCHANGED <<to, up, at, ep, ref>>

Start(c) ==                                    \* the calls behind c now wait for c, which waits for nothing yet
  /\ at[c] = "queued" /\ Holder(to[c]) = 0
  /\ at' = [at EXCEPT ![c] = "turn"]
  /\ UNCHANGED <<to, up, ep, net, ref, flt>>

Reply(p) ==
  /\ at[p] = "turn" /\ Kids(p) = {}
  /\ at' = [at EXCEPT ![p] = "done"]
  /\ net' = IF Par[p] = 0 THEN net ELSE net \cup {Msg("ok", p)}
  /\ up' = IF Par[p] = 0 /\ up[p] = "wait" THEN [up EXCEPT ![p] = "ok"] ELSE up
  /\ UNCHANGED <<to, ep, ref, flt>>

Answer(c, k) ==                                \* a reply reaches the turn of the caller
  /\ Msg(k, c) \in net
  /\ net' = net \ {Msg(k, c)}
  /\ up' = IF up[c] = "wait" THEN [up EXCEPT ![c] = k] ELSE up
  /\ UNCHANGED <<to, at, ep, ref, flt>>

\* ------------------------------------------------------------ the probe
Probe(i, c, keep) == \E m \in net :            \* lap one: it follows the waits
  /\ m.k = "probe" /\ m.i = i /\ m.c = c /\ c # i
  /\ Take(m, keep)
  /\ LET t == Seen(c)
         met == \E n \in 1..Len(m.ring) : m.ring[n].turn = t
     IN net' = Rest(m, keep) \cup
               IF met /\ Bug # "revisit" THEN {} ELSE Along(i, Append(m.ring, Hop(c, t)), t)
  /\ UNCHANGED <<to, up, at, ep, ref>>

Victim(i, ring) ==                             \* the newest queued call
  LET candidates == {n \in 1..Len(ring) : Queued(ring[n]) \/ Bug = "running"}
  IN IF Bug = "prober" THEN i ELSE Max({ring[n].call : n \in candidates})

ProbeHome(i, keep) == \E m \in net :           \* lap two begins; it ends at the victim
  /\ m.k = "probe" /\ m.i = i /\ m.c = i
  /\ Take(m, keep)
  /\ LET N == Len(m.ring)
         v == Victim(i, m.ring)
         j == CHOOSE n \in 1..N : m.ring[n].call = v
         ring == [n \in 1..N |-> m.ring[((j + n - 1) % N) + 1]]      \* rotated so that v comes last
         first == IF Bug = "onelap" THEN N ELSE 1
         lap2 == {[k |-> "confirm", c |-> ring[first].call, i |-> i, ring |-> ring, n |-> first,
                   stood |-> Stands(ring)]}                          \* stood: not known to any cell
     IN net' = Rest(m, keep) \cup IF Bug = "newest" /\ v # i THEN {} ELSE lap2
  /\ UNCHANGED <<to, up, at, ep, ref>>

StillThere(m) ==                               \* checks at the cell of the n-th call in lap two
  LET h == m.ring[m.n]
  IN /\ Seen(h.call) = h.turn       \/ Bug = "half"
     /\ ep[to[h.call]] = h.epoch    \/ Bug = "epoch"
     /\ Next1(m.ring, m.n).call \in Kids(h.turn)

Confirm(i, c, keep) == \E m \in net :
  /\ m.k = "confirm" /\ m.i = i /\ m.c = c
  /\ m.n < Len(m.ring) \/ ~StillThere(m)
  /\ Take(m, keep)
  /\ net' = Rest(m, keep) \cup
            IF StillThere(m) THEN {[m EXCEPT !.n = @ + 1, !.c = m.ring[m.n + 1].call]} ELSE {}
  /\ UNCHANGED <<to, up, at, ep, ref>>

RefuseWaitCycle(i, c, keep) == \E m \in net :
  /\ m.k = "confirm" /\ m.i = i /\ m.c = c
  /\ m.n = Len(m.ring) /\ StillThere(m)
  /\ Take(m, keep)
  /\ at' = [at EXCEPT ![c] = "done"]
  /\ net' = Rest(m, keep) \cup {Msg("refused", c)}
  /\ ref' = ref \cup {[call |-> c, ring |-> {m.ring[n] : n \in 1..Len(m.ring)}, stood |-> m.stood, stands |-> Stands(m.ring)]}
  /\ UNCHANGED <<to, up, ep>>

Reprobe(c) ==                                  \* a timer, long compared with the travel time of a probe
  /\ MaxDrop + MaxCrash > 0 /\ Bug # "noreprobe"
  /\ c \in Nested /\ at[c] = "queued" /\ Kids(Turn(c)) # {}
  /\ ~\E m \in net : IsProbe(m) /\ m.i = c
  /\ net' = net \cup SetOut(c, Turn(c))
  /\ UNCHANGED <<to, up, at, ep, ref, flt>>

\* ------------------------------------------------------------ the environment
Hurry == flt.giveup < MaxGiveUp /\ flt' = [flt EXCEPT !.giveup = @ + 1]

GiveUp(c) ==                                   \* the caller of c stops waiting: a client cancels, or a turn expires
  /\ up[c] = "wait" /\ Hurry
  /\ up' = [up EXCEPT ![c] = "gone"]
  /\ net' = net \cup {Msg("cancel", c)}
  /\ UNCHANGED <<to, at, ep, ref>>

\* Call c ends at its callee. In the same step the calls its turn waits for are cancelled.
Close(c, rest, say) ==
  /\ at' = [at EXCEPT ![c] = "done"]
  /\ up' = [y \in Ids |-> IF y \in Kids(c) THEN "gone" ELSE up[y]]
  /\ net' = rest \cup say \cup {Msg("cancel", y) : y \in Kids(c)}
  /\ UNCHANGED <<to, ep, ref>>

Cancel(c) ==                                   \* the cancel arrives; it may overtake its request
  /\ Msg("cancel", c) \in net
  /\ Close(c, net \ {Msg("cancel", c)}, {})
  /\ UNCHANGED flt

Expire(c) ==                                   \* the timer of the callee ends c, queued or with its turn
  /\ at[c] \in {"queued", "turn"} /\ Par[c] # 0 /\ Hurry
  /\ Close(c, net, {Msg("refused", c)})

Drop(i, c) == \E m \in net :                   \* a probe is lost
  /\ IsProbe(m) /\ m.i = i /\ m.c = c
  /\ flt.drop < MaxDrop /\ flt' = [flt EXCEPT !.drop = @ + 1]
  /\ net' = net \ {m}
  /\ UNCHANGED <<to, up, at, ep, ref>>

\* State after a restart. "all": everything was synced. The queue remains, and so does a turn that has
\* made calls; a turn without calls starts again. "asked": the tail with the arrivals is lost, so only
\* turns that have made calls remain (their calls have left the node, so they are synced). "none": the
\* actor has no journal. Probes that arrive before the actor is restored are lost, so each restored call
\* sends one, queued or not.
Crash(a, keep) ==
  LET asked == {c \in Turns(a) : \E y \in Below(c) : up[y] # "new"}
      new   == [c \in Ids |-> CASE to[c] # a \/ at[c] \notin {"queued", "turn"} -> at[c]
                                [] keep = "all"   -> IF c \in asked THEN "turn" ELSE "queued"
                                [] keep = "asked" -> IF c \in asked THEN "turn" ELSE "none"
                                [] OTHER          -> "none"]
      visits == {m \in net : IsProbe(m) /\ to[m.c] = a}
      probing == {c \in Nested : /\ to[c] = a /\ Bug # "noreprobe"
                                 /\ new[c] = "queued" \/ (new[c] = "turn" /\ Bug # "restored")}
  IN /\ flt.crash < MaxCrash /\ flt' = [flt EXCEPT !.crash = @ + 1]
     /\ UNCHANGED <<to, ref>>
     /\ ep' = [ep EXCEPT ![a] = @ + 1]
     /\ at' = new
     /\ up' = [y \in Ids |-> IF Par[y] # 0 /\ Par[y] \in Turns(a) /\ new[Par[y]] = "none" /\ up[y] = "wait"
                             THEN "gone" ELSE up[y]]
     /\ \E lost \in {{}, visits} : net' = (net \ lost) \cup UNION {SetOut(c, Turn(c))' : c \in probing}

Resend(c) ==                                   \* no answer, and a crash may have lost the call
  /\ flt.crash > 0 /\ up[c] = "wait" /\ at[c] = "none" /\ Msg("req", c) \notin net
  /\ net' = net \cup {Msg("req", c)}
  /\ UNCHANGED <<to, up, at, ep, ref, flt>>

Quiet == net = {} /\ \A c \in Ids : up[c] # "wait" /\ at[c] \notin {"queued", "turn"}

Move ==
  \/ \E p \in Ids : \E S \in SUBSET Below(p) : Ask(p, S)
  \/ \E c \in Ids : Deliver(c) \/ Start(c) \/ Reply(c) \/ Reprobe(c) \/ GiveUp(c) \/ Cancel(c) \/ Expire(c) \/ Resend(c)
  \/ \E c \in Ids, k \in {"ok", "refused"} : Answer(c, k)
  \/ \E c \in Ids, keep \in Keep : Queue(c, keep) \/ ProbeHome(c, keep)
  \/ \E i, c \in Ids, keep \in Keep : Probe(i, c, keep) \/ Confirm(i, c, keep) \/ RefuseWaitCycle(i, c, keep)
  \/ \E i, c \in Ids : Drop(i, c)
  \/ \E a \in Agents, keep \in Keeps : Crash(a, keep)
Next == Move \/ (Quiet /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars

\* Only probes and the timer that repeats them are fair: no turn need end and no time-out need fire.
Travel(i) == ProbeHome(i, FALSE) \/ \E c \in Ids : Probe(i, c, FALSE) \/ Confirm(i, c, FALSE) \/ RefuseWaitCycle(i, c, FALSE)
ProbeSpec == Init /\ [][Move]_vars /\ \A i \in Nested : WF_vars(Travel(i)) /\ WF_vars(Reprobe(i))

\* ------------------------------------------------------------ properties
TypeOK ==
  /\ \A c \in Ids : /\ up[c] \in {"new", "wait", "ok", "refused", "gone"}
                    /\ at[c] \in {"none", "queued", "turn", "done"}
  /\ \A a \in Agents \ Inter : Cardinality(Turns(a)) <= 1

\* All waits of the cycle named by a refusal existed at one instant while the call was queued.
NoPhantomRefusal == \A r \in ref : r.stood
OneVictimPerCycle == \A r, s \in ref : r.ring = s.ring => r.call = s.call
NewestIsRefused == \A r \in ref : \A h \in r.ring : Queued(h) => r.call >= h.call
RefusedNeverRuns == [][/\ \A r \in ref' \ ref : at[r.call] = "queued"
                       /\ \A r \in ref : at'[r.call] = "done"]_vars
\* No cycle exists without a probe under way. (Only if no probe is lost, except by a cell that restarts.)
NoWaitCycle == (\E m \in net : IsProbe(m)) \/ ~\E c \in Ids : at[c] = "queued" /\ OnRing(c)
\* A probe ends: it visits no turn twice and respects its hop limit.
ProbeBounded == \A m \in net : IsProbe(m) =>
  /\ Len(m.ring) <= HopMax
  /\ \A x, y \in 1..Len(m.ring) : m.ring[x].turn = m.ring[y].turn => x = y
\* No cycle exists for ever, even without time-outs.
EveryWaitCycleBreaks == \A c \in Nested : OnRing(c) ~> ~OnRing(c)

\* ------------------------------------------------------------ shapes of call forests
Anyone == [Ids -> Agents]
Pair     == <<0, 0, 1, 2>>                     \* 1>3     2>4
Through  == <<0, 0, 5, 2, 1>>                  \* 1>5>3   2>4          a cycle through a turn that is not queued
Tree     == <<0, 1, 1, 2, 3>>                  \* 1>{2>4, 3>5}         a cycle inside one tree
Fork     == <<0, 0, 2, 1, 1>>                  \* 1>{4,5} 2>3
Shared   == <<0, 0, 2, 1, 2>>                  \* 1>4     2>{3,5}      two cycles with one common call
Lines    == <<0, 0, 0, 1, 2, 3>>               \* 1>4     2>5     3>6
Mutual   == {<<1, 2, 2, 1>>}                   \* with Pair: each calls the other's actor, nothing else
Round    == {<<1, 2, 3, 2, 3, 1>>}             \* with Lines: a cycle of three, nothing else
Loop     == {<<1, 3, 3, 1, 2>>}                \* with Through: a cycle through 5, nothing else

\* ------------------------------------------------------------ what must be possible: each must be violated
RECURSIVE Root(_)
Root(c) == IF Par[c] = 0 THEN c ELSE Root(Par[c])
Roots(r) == {Root(h.call) : h \in r.ring}
Not_RingOfThree  == ~\E r \in ref : Cardinality({h \in r.ring : Queued(h)}) = 3 /\ Cardinality(Roots(r)) = 3
Not_ThroughATurn == ~\E r \in ref : \E h \in r.ring : ~Queued(h)
Not_InOneTree    == ~\E r \in ref : Cardinality(Roots(r)) = 1
Not_OfAFork      == ~\E r \in ref : \E h \in r.ring : Cardinality({y \in Below(h.turn) : up[y] # "new"}) = 2
Not_TwoProbes    == ~\E m, n \in net : m.k = "confirm" /\ n.k = "confirm" /\ m.i # n.i
                                       /\ {m.ring[x] : x \in 1..Len(m.ring)} = {n.ring[x] : x \in 1..Len(n.ring)}
Not_CancelBeats  == ~\E m \in net : m.k = "confirm" /\ m.stood /\ ~Stands(m.ring) /\ ref = {}
Not_TooLate      == ~\E m \in net : m.k = "confirm" /\ ~m.stood
Not_GoneAtOnce   == \A r \in ref : r.stands
Not_Behind       == ~\E c \in Ids : at[c] = "queued" /\ OnRing(c) /\ Box(to[c]) # {c}
Not_OverACrash   == ~\E r \in ref : \E h \in r.ring : h.epoch > 1 /\ Queued(h)
Not_GivenBack    == ~\E r \in ref : \E h \in r.ring : to[h.call] \in Inter
Not_GoesOn       == ~\E r \in ref : up[r.call] = "refused" /\ at[Par[r.call]] = "done"
Not_TooLong      == (\E m \in net : IsProbe(m)) \/ ~\E c \in Ids : at[c] = "queued" /\ c \in Reach(Kids(Turn(c)))

Sym == Permutations(Agents \ Inter)
=============================================================================
