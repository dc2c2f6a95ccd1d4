-------------------------------- MODULE Log --------------------------------
(* One node, several cells, one log: the effect of crashes on the log.        *)
(*                                                                            *)
(* A step of a cell extends its memory and requests entries to be appended    *)
(* and messages to be sent. Its entries are appended to the log of the node,  *)
(* then its messages are handed over. A message to another cell of the node   *)
(* is delivered at once. A message that leaves the node waits at the gate     *)
(* until the log is synced up to its length at that time. The log is written  *)
(* and then synced, concurrently with the cells.                              *)
(*                                                                            *)
(* A crash discards all memory, all messages inside the node, all messages at *)
(* the gate, and any part of the unsynced tail of the log. A restart restores *)
(* the state from the rest of the log and resumes unfinished turns. The       *)
(* environment (clients, another node, a tool) loses nothing. Clients repeat  *)
(* requests until they get a response. A message that left the node may       *)
(* arrive at any time, and repeatedly. `Bug` removes one guard; "none" is the *)
(* design. Calls.tla explains the notation.                                   *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Plan,      \* the callers and callees
  Safe,      \* TRUE: the tool may be used again after a crash
  MaxCrash,  \* budget
  Bug

VARIABLES
  log,       \* entries, each with a flag for the last one of its step
  written,   \* number of entries in the file
  synced,    \* number of entries that survive any crash
  up,
  mem,       \* per cell: the entries it has applied
  ready,     \* per cell: the entries and messages of a step that is not appended yet
  box,       \* messages inside the node
  held,      \* messages at the gate, each with the log length to be synced
  net,       \* messages that left the node for a client or another node
  eff,       \* attempts of the tool that were performed, in order
  crashes
vars == <<log, written, synced, up, mem, ready, box, held, net, eff, crashes>>

\* A call: the calling turn (0: a client) and the callee: a cell, another node ("far"), or a tool.
Hop(p, t) == [par |-> p, to |-> t]
Hops == CASE Plan = "tool"  -> <<Hop(0, "a"), Hop(1, "b"), Hop(2, "tool")>>
          [] Plan = "far"   -> <<Hop(0, "a"), Hop(1, "b"), Hop(2, "far")>>
          [] Plan = "cross" -> <<Hop(0, "a"), Hop(1, "b"), Hop(0, "b"), Hop(3, "a")>>
          [] Plan = "mixed" -> <<Hop(0, "a"), Hop(1, "b"), Hop(2, "tool"), Hop(0, "b"), Hop(4, "far")>>
Cells     == {"a", "b"}
Ids       == 1..Len(Hops)
Roots     == {c \in Ids : Hops[c].par = 0}
To(c)     == Hops[c].to
Kids(c)   == {k \in Ids : Hops[k].par = c}
From(c)   == IF c \in Roots THEN "client" ELSE To(Hops[c].par)
Inside(c) == {From(c), To(c)} \subseteq Cells

\* Entries: Accepted, Asked (n: attempt), Answered (n = 0: outcome unknown), Changed (the actor's state), Done.
Entry(a, k, c, n) == [at |-> a, k |-> k, c |-> c, n |-> n]
Range(s)          == {s[i] : i \in 1..Len(s)}
Has(S, k, c)      == \E e \in S : e.k = k /\ e.c = c
Entries(l)        == {l[i].e : i \in 1..Len(l)}
Fold(l, a)        == {e \in Entries(l) : e.at = a}
Prefix(k)         == SubSeq(log, 1, k)
LogMax            == 4 * Len(Hops) + MaxCrash
Cuts              == {0} \cup {k \in 1..Len(log) : log[k].end}     \* between two steps

Msg(k, c, n)  == [k |-> k, c |-> c, n |-> n]
Request(c, n) == IF To(c) = "tool" THEN Msg("work", c, n) ELSE Msg("req", c, 0)
Ok(c)         == Msg("ok", c, 0)
Stays(m)      == m.k # "work" /\ Inside(m.c)

\* The requests of a step: entries to append, messages to send.
Nil        == [e |-> <<>>, m |-> {}]
Want(e, m) == [e |-> e, m |-> m]
Also(w, v) == Want(w.e \o v.e, w.m \cup v.m)

Init == /\ log = <<>> /\ written = 0 /\ synced = 0
        /\ up = TRUE
        /\ mem = [a \in Cells |-> {}]
        /\ ready = [a \in Cells |-> Nil]
        /\ box = {} /\ held = {} /\ net = {} /\ eff = <<>>
        /\ crashes = 0

\* ------------------------------------------------------------------ a cell's step
\* Turn c continues from the entries S: it makes its next calls, or ends with state, Done and reply in
\* one step.
Turn(S, c) ==
  LET a == To(c)
      new == {k \in Kids(c) : ~Has(S, "asked", k)}
      k   == CHOOSE x \in new : TRUE
  IN CASE new # {} -> Want(<<Entry(a, "asked", k, 1)>>, {Request(k, 1)})
       [] \A x \in Kids(c) : Has(S, "answered", x) ->
            Want(<<Entry(a, "changed", c, 0), Entry(a, "done", c, 0)>>, {Ok(c)})
       [] OTHER -> Nil

Takes(a) == up /\ ready[a] = Nil
Step(a, w, rest) ==              \* rest: the messages inside without the one that was read
  /\ mem' = [mem EXCEPT ![a] = @ \cup Range(w.e)]
  /\ ready' = [ready EXCEPT ![a] = IF Bug = "handover" THEN Want(w.e, {m \in w.m : ~Stays(m)}) ELSE w]
  /\ box' = IF Bug = "handover" THEN rest \cup {m \in w.m : Stays(m)} ELSE rest
  /\ UNCHANGED <<log, written, synced, up, held, net, eff, crashes>>

Admit(c) ==                      \* a new request; its turn starts in the same step
  LET a == To(c) acc == Entry(a, "accepted", c, 0)
  IN /\ a \in Cells /\ Takes(a)
     /\ c \in Roots \/ Msg("req", c, 0) \in box
     /\ ~Has(mem[a], "accepted", c) \/ (Bug = "dedup" /\ Has(mem[a], "done", c))
     /\ Step(a, Also(Want(<<acc>>, {}), Turn(mem[a] \cup {acc}, c)), box \ {Msg("req", c, 0)})

Unsaid(m) == m \notin net /\ ~\E h \in held : h.m = m
Deliver(c) ==                    \* a repeated request: answered again if it is completed
  LET a == To(c) done == Has(mem[a], "done", c)
  IN /\ a \in Cells /\ Takes(a) /\ Has(mem[a], "accepted", c)
     /\ IF c \in Roots THEN done /\ Unsaid(Ok(c)) ELSE Msg("req", c, 0) \in box
     /\ Step(a, IF done THEN Want(<<>>, {Ok(c)}) ELSE Nil, box \ {Msg("req", c, 0)})

Answer(k) ==                     \* a reply, or the outcome of the tool
  LET a   == From(k)
      oks == {m \in box : m.k = "ok" /\ m.c = k}
      ans == Entry(a, "answered", k, 1)
  IN /\ a \in Cells /\ Takes(a) /\ Has(mem[a], "asked", k)
     /\ IF Has(mem[a], "answered", k)
        THEN oks # {} /\ Step(a, Nil, box \ oks)
        ELSE /\ IF To(k) = "far" THEN Msg("req", k, 0) \in net ELSE oks # {}
             /\ Step(a, Also(Want(<<ans>>, {}), Turn(mem[a] \cup {ans}, Hops[k].par)), box \ oks)

\* ------------------------------------------------------------------ the log and the gate
Early(m) == \/ Bug = "ackearly"  /\ m.k = "ok"
            \/ Bug = "askearly"  /\ m.k = "req"
            \/ Bug = "workearly" /\ m.k = "work"

Longer(a) == log \o [i \in 1..Len(ready[a].e) |-> [e |-> ready[a].e[i], end |-> i = Len(ready[a].e)]]
Put(a) ==                        \* entries first; then messages are delivered, or wait at the gate
  LET pos == IF Bug = "gatebefore" THEN Len(log) ELSE Len(log) + Len(ready[a].e)
  IN /\ up /\ ready[a] # Nil
     /\ log' = Longer(a)
     /\ box' = box \cup {m \in ready[a].m : Stays(m)}
     /\ held' = held \cup {[m |-> m, pos |-> IF Early(m) THEN 0 ELSE pos] : m \in {x \in ready[a].m : ~Stays(x)}}
     /\ ready' = [ready EXCEPT ![a] = Nil]
     /\ UNCHANGED <<written, synced, up, mem, net, eff, crashes>>

Write ==
  /\ up /\ written < Len(log)
  /\ written' = Len(log)
  /\ UNCHANGED <<log, synced, up, mem, ready, box, held, net, eff, crashes>>

Sync(k) ==                       \* of everything written, or of an older batch while the next is in progress
  /\ up /\ k \in Cuts /\ synced < k /\ k <= written
  /\ synced' = k
  /\ UNCHANGED <<log, written, up, mem, ready, box, held, net, eff, crashes>>

Passes(h) == up /\ h \in held /\ h.pos <= IF Bug = "written" THEN written ELSE synced
Send(k, c) == \E h \in held :
  /\ Passes(h) /\ h.m.k = k /\ h.m.c = c /\ k # "work"
  /\ held' = held \ {h} /\ net' = net \cup {h.m}
  /\ UNCHANGED <<log, written, synced, up, mem, ready, box, eff, crashes>>
Perform(c) == \E h \in held :    \* the tool performs it; its outcome is a message inside the node
  /\ Passes(h) /\ h.m.k = "work" /\ h.m.c = c
  /\ held' = held \ {h} /\ eff' = eff \o <<h.m.n>>
  /\ box' = box \cup {Msg("ok", c, h.m.n)}
  /\ UNCHANGED <<log, written, synced, up, mem, ready, net, crashes>>

\* ------------------------------------------------------------------ crash and restart
\* "middle" models one log per cell: one cell keeps everything while the other loses its tail.
Left(k) == {Prefix(k)} \cup
  (IF Bug # "middle" THEN {} ELSE
   {Prefix(k) \o SelectSeq(SubSeq(log, k + 1, written), LAMBDA x : x.e.at = a) : a \in Cells})
Crash(k) ==
  /\ up /\ crashes < MaxCrash
  /\ k \in synced..written /\ (k \in Cuts \/ Bug = "split")
  /\ \E l \in Left(k) : log' = l /\ written' = Len(l) /\ synced' = Len(l)
  /\ up' = FALSE /\ crashes' = crashes + 1
  /\ mem' = [a \in Cells |-> {}] /\ ready' = [a \in Cells |-> Nil]
  /\ box' = {} /\ held' = {}
  /\ UNCHANGED <<net, eff>>

Attempt(S, k) == CHOOSE n \in {e.n : e \in {x \in S : x.k = "asked" /\ x.c = k}} :
                   \A e \in S : e.k = "asked" /\ e.c = k => e.n <= n
\* An unfinished turn: a call is resent; a safe tool is used again as a new attempt; else the outcome
\* is unknown.
Again(S, c) ==
  LET a    == To(c)
      open == {k \in Kids(c) : Has(S, "asked", k) /\ ~Has(S, "answered", k)}
      k    == CHOOSE x \in open : TRUE
      n    == Attempt(S, k)
      none == Entry(a, "answered", k, 0)
  IN CASE open = {} -> Turn(S, c)
       [] To(k) # "tool" -> Want(<<>>, {Request(k, 1)})
       [] Bug = "sameattempt" -> Want(<<>>, {Request(k, n)})
       [] Safe \/ Bug = "unsafe" -> Want(<<Entry(a, "asked", k, n + 1)>>, {Request(k, n + 1)})
       [] OTHER -> Also(Want(<<none>>, {}), Turn(S \cup {none}, c))

RECURSIVE Boot(_, _, _)
Boot(S, a, c) ==
  IF c = 0 \/ Bug = "forget" THEN Nil
  ELSE Also(Boot(S, a, c - 1),
            IF To(c) = a /\ Has(S, "accepted", c) /\ ~Has(S, "done", c) THEN Again(S, c) ELSE Nil)

Restart ==
  /\ ~up /\ up' = TRUE
  /\ LET boot == [a \in Cells |-> Boot(Fold(log, a), a, Len(Hops))]
     IN /\ ready' = boot
        /\ mem' = [a \in Cells |-> Fold(log, a) \cup Range(boot[a].e)]
  /\ UNCHANGED <<log, written, synced, box, held, net, eff, crashes>>

\* Every client has its response. Any other state without a successor is a deadlock, which TLC reports.
Quiet == \A c \in Roots : Ok(c) \in net

Calm == \/ \E c \in Ids : Admit(c) \/ Deliver(c) \/ Answer(c) \/ Perform(c)
        \/ \E k \in {"req", "ok"}, c \in Ids : Send(k, c)
        \/ \E a \in Cells : Put(a)
        \/ \E k \in 1..LogMax : Sync(k)
        \/ Write \/ Restart
Next == Calm \/ (\E k \in 0..LogMax : Crash(k)) \/ (Quiet /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars
LiveSpec == Spec /\ WF_vars(Calm)

\* ---------------------------------------------------------------- properties
TypeOK == /\ 0 <= synced /\ synced <= written /\ written <= Len(log) /\ Len(log) <= LogMax
          /\ {synced, written} \subseteq Cuts \/ Bug = "split"
          /\ ~up => box = {} /\ held = {} /\ \A a \in Cells : ready[a] = Nil /\ mem[a] = {}
\* Everything that has left the node is durable there.
AckedIsDurable == \A m \in net : Has(Entries(Prefix(synced)), IF m.k = "req" THEN "asked" ELSE "done", m.c)
\* No attempt of the tool is performed twice. A tool that is not safe to repeat is used at most once.
EffectOncePerAttempt == Cardinality(Range(eff)) = Len(eff) /\ (Safe \/ Len(eff) <= 1)
\* A Send inside the node needs no gate: wherever the log may be cut, no cell remembers what another
\* has lost.
NoGateInside == \A i \in 1..Len(log) : LET e == log[i].e IN Inside(e.c) =>
  /\ e.k = "accepted" => \E j \in 1..i : log[j].e.k = "asked" /\ log[j].e.c = e.c
  /\ e.k = "answered" => \E j \in 1..i : log[j].e.k = "done"  /\ log[j].e.c = e.c
\* A call changes its actor once, regardless of cuts and repeats.
ChangedOnce == \A c \in Ids : Cardinality({i \in 1..Len(log) : log[i].e.k = "changed" /\ log[i].e.c = c}) <= 1
\* A crash leaves a prefix of the log with all synced entries; a cell has applied the log and its own
\* step.
RestoreIsPrefix == [][
  /\ up /\ ~up' => Len(log') >= synced /\ log' = Prefix(Len(log'))
  /\ up' => \A a \in Cells : mem'[a] = Fold(log', a) \cup Range(ready'[a].e)]_vars
EveryCallEnds == \A c \in Roots : <>(Ok(c) \in net)

\* ---------------------------------------------- what must be possible: each must be violated
Crashes == up /\ ~up'
Not_CrashBeforeAppend  == [][~(Crashes /\ \E a \in Cells : ready[a].e # <<>>)]_vars
Not_CrashBeforeWrite   == [][~(Crashes /\ written < Len(log) /\ synced = written)]_vars
Not_CrashBeforeSync    == [][~(Crashes /\ synced < written /\ Len(log') = synced)]_vars
Not_CrashKeepsUnsynced == [][~(Crashes /\ synced < Len(log'))]_vars
Not_CrashBeforeSend    == [][~(Crashes /\ \E h \in held : h.pos <= synced)]_vars
Not_CrashBeforeAnswer  == [][~(Crashes /\ eff # <<>> /\ \E m \in box : m.k = "ok" /\ To(m.c) = "tool")]_vars
Not_ForgottenTogether  == [][~(Crashes /\ \E c \in Ids : /\ Inside(c) /\ Has(mem[To(c)], "accepted", c)
                                                         /\ ~Has(Entries(log'), "asked", c))]_vars
Answered0              == \E e \in Entries(Prefix(synced)) : e.k = "answered" /\ e.n = 0
Not_UnknownButDone     == ~(Answered0 /\ eff # <<>> /\ Quiet)
Not_UnknownAndNotDone  == ~(Answered0 /\ eff = <<>> /\ Quiet)
Not_DoneAgain          == ~(eff = <<1, 2>> /\ Quiet)
Not_ReplyLost          == [][~(Crashes /\ \E c \in Roots : Has(Entries(log'), "done", c) /\ Ok(c) \notin net)]_vars
=============================================================================
