------------------------------ MODULE Retention ------------------------------
(* The log of a node forgets: its front is cut, and sessions are deleted.     *)
(*                                                                            *)
(* Each entry belongs to a session: a run begins or ends, or a snapshot keeps *)
(* the open runs and the remembered outcomes. The index is a function of the  *)
(* log, made later in steps: rows that find the entries of a session, a row   *)
(* for each run in lists, and a watermark up to which it is complete. A       *)
(* restart reads the rows up to the watermark and the log behind it. It also  *)
(* writes rows before the watermark again, in case some of them are lost.     *)
(*                                                                            *)
(* Cut deletes all entries up to a position, together with the entry Cut. A   *)
(* session is deleted by the entry Forgotten; once that is durable, one batch *)
(* deletes its rows and leaves a tombstone, and its content in the log is     *)
(* blanked. If the watermark passes that entry first, it leaves a tombstone,  *)
(* too. `Bug` removes one guard; "none" is the design. Calls.tla explains the *)
(* notation.                                                                  *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Sessions,
  Runs,      \* ids 1..n, used in order
  LogMax, MaxCrash,
  Bug

VARIABLES
  log,       \* all entries; those up to cut are deleted, and serve only as the history
  synced,    \* number of entries that survive any crash
  cut,       \* position of the last deleted entry
  rows,      \* rows of the index: session and position of an entry
  listed,    \* runs with a row in the lists
  mark,      \* the watermark
  dead,      \* tombstones: for each session the position of its entry Forgotten, 0 for none
  left,      \* sessions with a tombstone, but rows too
  blank,     \* positions of blanked entries
  todo,      \* deleted sessions whose content is not blanked yet
  old,       \* runs whose outcome need not be remembered any longer
  crashes
vars == <<log, synced, cut, rows, listed, mark, dead, left, blank, todo, old, crashes>>

Max(S)   == CHOOSE x \in S : \A y \in S : y <= x
No       == "none"
Entry(k, s, c) == [k |-> k, s |-> s, c |-> c, open |-> {}, outs |-> {}]
Of(s, i) == log[i].s = s
Runs_(k, V) == {log[i].c : i \in {j \in V : log[j].k = k}}
Began(c) == CHOOSE i \in 1..Len(log) : log[i].k = "begin" /\ log[i].c = c
Used     == Runs_("begin", 1..Len(log))

\* The last entry Forgotten of a session up to position k, and the last one that a restart finds: from
\* the tombstone, or behind the watermark.
Forgot(s, k) == Max({0} \cup {i \in 1..k : log[i].k = "forgotten" /\ Of(s, i)})
Known(s, k)  == Max({dead[s]} \cup {i \in mark + 1..k : log[i].k = "forgotten" /\ Of(s, i)})

\* The state of a session according to some of its entries: the last snapshot and what follows it.
State(V) ==
  LET n == Max({0} \cup {i \in V : log[i].k = "snapshot"})
      L == {i \in V : i > n}
  IN [open |-> ((IF n = 0 THEN {} ELSE log[n].open) \cup Runs_("begin", L)) \ Runs_("end", L),
      outs |-> ((IF n = 0 THEN {} ELSE log[n].outs) \cup Runs_("end", L)) \ old]

\* The state if nothing had ever been deleted but forgotten sessions, and that after a restart, when the
\* first k entries are left.
Truth(s, k)     == State({i \in 1..k : Of(s, i) /\ i > Forgot(s, k) /\ log[i].k # "snapshot"})
Seen(s, k)      == {i \in cut + 1..k : IF i <= mark THEN <<s, i>> \in rows ELSE Of(s, i)}
Recovered(s, k) == State({i \in Seen(s, k) : i > Known(s, k)})

Init == /\ log = <<>> /\ synced = 0 /\ cut = 0
        /\ rows = {} /\ listed = {} /\ mark = 0
        /\ dead = [s \in Sessions |-> 0] /\ left = {} /\ blank = {} /\ todo = {}
        /\ old = {} /\ crashes = 0

Append1(e) == Len(log) < LogMax /\ log' = Append(log, e)
\* The name of a session cannot be taken again before a cut has passed its deletion.
Free(s)    == Known(s, Len(log)) = 0

Begin(s) ==
  LET c == Cardinality(Used) + 1
  IN /\ c \in Runs /\ Free(s)
     /\ Append1(Entry("begin", s, c))
     /\ UNCHANGED <<synced, cut, rows, listed, mark, dead, left, blank, todo, old, crashes>>

End(s, c) ==
  /\ c \in Truth(s, Len(log)).open
  /\ Append1(Entry("end", s, c))
  /\ UNCHANGED <<synced, cut, rows, listed, mark, dead, left, blank, todo, old, crashes>>

Expire(c) ==                     \* the time for which the outcome is remembered has passed
  /\ c \in Runs_("end", 1..synced) /\ c \notin old
  /\ old' = old \cup {c}
  /\ UNCHANGED <<log, synced, cut, rows, listed, mark, dead, left, blank, todo, crashes>>

Snapshot(s) ==
  LET t == Truth(s, Len(log))
  IN /\ t.open \cup t.outs # {}
     /\ Append1([Entry("snapshot", s, 0) EXCEPT !.open = t.open, !.outs = IF Bug = "nooutcome" THEN {} ELSE t.outs])
     /\ UNCHANGED <<synced, cut, rows, listed, mark, dead, left, blank, todo, old, crashes>>

Sync(k) ==
  /\ k \in synced + 1..Len(log)
  /\ synced' = k
  /\ UNCHANGED <<log, cut, rows, listed, mark, dead, left, blank, todo, old, crashes>>

\* ------------------------------------------------------------------ index
\* Once the rows of a session are deleted, its entries before its entry Forgotten have none.
Skipped(i) == LET s == log[i].s IN
  \/ s = No
  \/ Bug = "skipearly" /\ i < Known(s, Len(log))
  \/ Bug # "reindex" /\ s \notin left /\ i < dead[s]
Index(m) ==
  LET new == {i \in mark + 1..m : ~Skipped(i)}
      Passed(s) == Max({0} \cup {i \in mark + 1..m : log[i].k = "forgotten" /\ Of(s, i)})
      fresh == IF Bug \in {"passes", "notombstone"} THEN {} ELSE {s \in Sessions : Passed(s) > dead[s]}
  IN /\ m \in mark + 1..(IF Bug = "ahead" THEN Len(log) ELSE synced)
     /\ dead' = [s \in Sessions |-> IF s \in fresh THEN Passed(s) ELSE dead[s]]
     /\ left' = left \cup fresh
     /\ rows' = rows \cup {<<log[i].s, i>> : i \in new}
     /\ listed' = listed \cup Runs_("begin", new)
     /\ mark' = m
     /\ UNCHANGED <<log, synced, cut, blank, todo, old, crashes>>

\* ------------------------------------------------------------------ cut
\* A snapshot behind position w, or nothing that began before it is needed.
Kept(s, w) == LET t == Truth(s, Len(log)) IN
  \/ \E i \in w + 1..Len(log) : log[i].k = "snapshot" /\ Of(s, i) /\ i > Forgot(s, Len(log))
  \/ \A c \in t.open \cup t.outs : Began(c) > w
  \/ Bug = "nosnapshot"
Cut(w) ==                        \* one synced batch: the deletion and its entry
  /\ w \in cut + 1..synced
  /\ w <= mark \/ Bug = "unindexed"
  /\ \A s \in Sessions : Kept(s, w) /\ (dead[s] \in 1..w => s \notin left \cup todo)
  /\ Append1(Entry("cut", No, 0))
  /\ synced' = Len(log) + 1
  /\ cut' = w /\ mark' = Max({mark, w})
  /\ rows' = {r \in rows : r[2] > w}
  /\ dead' = [s \in Sessions |-> IF dead[s] <= w THEN 0 ELSE dead[s]]
  /\ blank' = {i \in blank : i > w}
  /\ UNCHANGED <<listed, left, todo, old, crashes>>

\* ------------------------------------------------------------------ deletion of a session
Forget(s) ==                     \* refused while a run is open
  /\ Free(s) /\ Truth(s, Len(log)).open = {} /\ \E i \in 1..Len(log) : Of(s, i) /\ i > Forgot(s, Len(log))
  /\ Append1(Entry("forgotten", s, 0))
  /\ UNCHANGED <<synced, cut, rows, listed, mark, dead, left, blank, todo, old, crashes>>

Delete(s) ==                     \* one synced batch
  LET p == Known(s, IF Bug = "deletefirst" THEN Len(log) ELSE synced)
  IN /\ p > dead[s] \/ s \in left
     /\ left' = left \ {s}
     /\ rows' = {r \in rows : r[1] # s}
     /\ listed' = listed \ {c \in Used : Of(s, Began(c))}
     /\ dead' = [dead EXCEPT ![s] = IF Bug = "notombstone" THEN 0 ELSE p]
     /\ todo' = todo \cup {s}
     /\ UNCHANGED <<log, synced, cut, mark, blank, old, crashes>>

Content(s) == {i \in cut + 1..dead[s] : Of(s, i)}
Blank(s) ==                      \* done again after a crash until a row says that it is done
  /\ s \in todo
  /\ blank' = blank \cup Content(s)
  /\ todo' = todo \ {s}
  /\ UNCHANGED <<log, synced, cut, rows, listed, mark, dead, left, old, crashes>>

Crash(k) ==
  /\ crashes < MaxCrash /\ k \in synced..Len(log)
  /\ log' = SubSeq(log, 1, k) /\ synced' = k /\ crashes' = crashes + 1
  /\ todo' = IF Bug = "noredo" THEN {} ELSE todo
  /\ rows' = rows \cup {<<log[i].s, i>> : i \in {j \in cut + 1..(IF mark < k THEN mark ELSE k) : ~Skipped(j)}}
  /\ UNCHANGED <<cut, listed, mark, dead, left, blank, old>>

Calm == \/ \E s \in Sessions : Begin(s) \/ Snapshot(s) \/ Forget(s) \/ Delete(s)
        \/ \E s \in Sessions, c \in Runs : End(s, c)
        \/ \E c \in Runs : Expire(c)
        \/ \E k \in 1..LogMax : Sync(k) \/ Index(k) \/ Cut(k)
        \/ \E s \in Sessions : Blank(s)
Next == Calm \/ \E k \in 0..LogMax : Crash(k)
Spec == Init /\ [][Next]_vars
LiveSpec == Spec /\ \A s \in Sessions : WF_vars(Blank(s)) /\ WF_vars(Delete(s))

\* ---------------------------------------------------------------- properties
TypeOK == /\ cut <= mark /\ synced <= Len(log) /\ Len(log) <= LogMax
          /\ mark <= synced \/ Bug = "ahead"
\* Wherever a crash ends the log, a restart finds the open runs and the remembered outcomes of each session.
CutKeepsOpen == \A s \in Sessions, k \in synced..Len(log) : Recovered(s, k) = Truth(s, k)
\* Lists have each run of a session that is not deleted, and no other: its rows that are left are ignored.
RunsListed == \A c \in Used : LET i == Began(c) s == log[i].s IN
  ((c \in listed \/ i > mark) /\ i > Known(s, Len(log))) <=> i > Forgot(s, Len(log))
\* Nothing of a deleted session is found again.
ForgottenStays == \A s \in Sessions : dead[s] > 0 /\ s \notin left =>
  /\ \A i \in 1..dead[s] - 1 : <<s, i>> \notin rows
  /\ \A c \in listed : Of(s, Began(c)) => Began(c) > dead[s]
ForgottenBlanked == \A s \in Sessions : [](dead[s] > 0 => <>(Content(s) \subseteq blank \/ dead[s] = 0))

\* ---------------------------------------------- what must be possible: each must be violated
Cuts == cut' > cut
Not_OpenKept         == [][~(Cuts /\ \E s \in Sessions : \E c \in Recovered(s, Len(log)).open : Began(c) <= cut')]_vars
Not_OutcomeKept      == ~\E s \in Sessions : \E c \in Recovered(s, synced).outs : Began(c) <= cut
Not_TakenAgain       == ~\E s \in Sessions : Forgot(s, Len(log)) > 0 /\ Truth(s, Len(log)).open # {}
Not_CrashBeforeDelete == [][~(crashes' > crashes /\ \E s \in Sessions : Known(s, synced) > dead[s] \/ s \in left)]_vars
Not_ForgottenLost    == [][~(crashes' > crashes /\ \E s \in Sessions : Forgot(s, Len(log)) > Forgot(s, Len(log')))]_vars
Not_SkippedByIndex   == [][~(mark' > mark /\ \E i \in mark + 1..mark' : log[i].s # No /\ Skipped(i))]_vars
=============================================================================
