-------------------------------- MODULE Work --------------------------------
(* A run, its tool calls, and the people who must approve them.               *)
(*                                                                            *)
(* A run asks for tools; a policy allows each, blocks it, or has a person     *)
(* asked. What a person approves is one tool call with the very arguments     *)
(* they saw, once, before the approval's time is over. Clicks come late, come *)
(* twice, come from two people who disagree. A run goes on from a tool call   *)
(* with a result only if that SUCCEEDED; any other end is a failure, which    *)
(* the agent handles or which ends the run.                                   *)
(*                                                                            *)
(* Each step changes run, tool call and approval together, in one commit; an  *)
(* effect, and the answer to a click, leave when the commit is synced. A      *)
(* crash goes back to what was. States have the names that clients see; the   *)
(* tables in package runs are this module's graph, which a test compares.     *)
(* `Bug` removes one guard; "none" is the design. See Calls.tla on reading.   *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
  Tools,      \* tool calls 1..n, made in order
  Args,       \* arguments
  Policies,   \* of "allow", "ask", "block"
  Begun,      \* "RUNNING" if a tool may be the server's, "WAITING_CLIENT" if a device's
  Safe,       \* those of Tools that may be repeated after a crash
  MaxEdit, MaxCancel, MaxCrash,     \* budgets
  Bug

VARIABLES
  run,        \* state of the run
  tool,       \* per tool call: state, policy, arguments, attempt, the approval it goes by, how the run took its end
  appr,       \* per tool call: its approvals, the last one counts
  disk,       \* the three, as a node would find them after a crash
  out,        \* what waits at the gate
  told,       \* what people were told: approval, their click, its state
  eff,        \* per tool call: the effects that were performed, in order
  due,        \* approvals whose time is over
  up, flt
vars == <<run, tool, appr, disk, out, told, eff, due, up, flt>>

New == [st |-> "none", pol |-> "none", args |-> "none", att |-> 0, by |-> 0, took |-> "none"]

Ended(r)    == r \in {"DONE", "FAILED", "CANCELLED"}
Over(s)     == s \in {"BLOCKED", "SUCCEEDED", "FAILED", "TIMEOUT"}
Out(s)      == s \in {"DISPATCHED", "RUNNING", "WAITING_CLIENT"}
Open(s)     == s # "none" /\ ~Over(s)
Last(t)     == Len(appr[t])
Asked(t)    == tool[t].st = "WAITING_APPROVAL"

\* A run waits for a person while one of its tool calls does, for a tool while one is out; else it runs.
Seen(ts) == CASE \E t \in Tools : ts[t].st = "WAITING_APPROVAL" -> "PAUSED_WAITING_APPROVAL"
              [] \E t \in Tools : Out(ts[t].st) -> "PAUSED_WAITING_TOOL"
              [] OTHER -> "RUNNING"

Init == /\ run = "none"
        /\ tool = [t \in Tools |-> New]
        /\ appr = [t \in Tools |-> <<>>]
        /\ disk = [run |-> run, tool |-> tool, appr |-> appr]
        /\ out = {} /\ told = {} /\ due = {}
        /\ eff = [t \in Tools |-> <<>>]
        /\ up = TRUE
        /\ flt = [edit |-> 0, cancel |-> 0, crash |-> 0]

\* ------------------------------------------------------------------ the gate
\* A message: an effect of tool call t, or the answer to a click on its approval n.
Work(t, r)       == [k |-> "work", t |-> t, n |-> r.by, x |-> r.args, att |-> r.att]
Ack(t, n, yes, s) == [k |-> "ack", t |-> t, n |-> n, x |-> s, att |-> IF yes THEN 1 ELSE 0]

\* Where no crash can happen, nothing needs to wait at the gate.
Early(m) == MaxCrash = 0 \/ (Bug = "memgrant" /\ m.k = "ack") \/ (Bug = "workearly" /\ m.k = "work")
Leave(ms) ==
  /\ told' = told \cup {m \in ms : m.k = "ack"}
  /\ eff' = [t \in Tools |->
       LET w == {m \in ms : m.k = "work" /\ m.t = t} IN IF w = {} THEN eff[t] ELSE Append(eff[t], CHOOSE m \in w : TRUE)]
Post(ms) == Leave({m \in ms : Early(m)}) /\ out' = out \cup {m \in ms : ~Early(m)}

Sync ==
  /\ up /\ MaxCrash > 0
  /\ disk' = [run |-> run, tool |-> tool, appr |-> appr]
  /\ disk' # disk \/ out # {}
  /\ Leave(out) /\ out' = {}
  /\ UNCHANGED <<run, tool, appr, due, up, flt>>

\* One commit: tool calls, approvals and run change together.
Commit(ts, as, ms) ==
  /\ tool' = ts /\ appr' = as
  /\ run' = IF Ended(run) THEN run ELSE Seen(ts)
  /\ Post(ms)
  /\ UNCHANGED <<disk, due, up, flt>>
Move(t, r) == Commit([tool EXCEPT ![t] = r], appr, {})
Mark(t, n, s) == [appr EXCEPT ![t][n].st = s]

\* The run ends: in the same commit, what is open ends too.
Fold(ts) == [t \in Tools |-> IF Open(ts[t].st) /\ Bug # "nocascade" THEN [ts[t] EXCEPT !.st = "FAILED"] ELSE ts[t]]
End(r, ts) ==
  /\ run' = r /\ tool' = Fold(ts)
  /\ appr' = IF Bug \in {"nocascade", "stillpending"} THEN appr ELSE
       [t \in Tools |-> [n \in 1..Last(t) |-> IF appr[t][n].st = "PENDING" THEN [appr[t][n] EXCEPT !.st = "EXPIRED"] ELSE appr[t][n]]]
  /\ Post({})
  /\ UNCHANGED <<disk, due, up>>

\* ------------------------------------------------------------------ run and tool calls
Start ==
  /\ up /\ run = "none" /\ run' = "RUNNING" /\ Post({})
  /\ UNCHANGED <<tool, appr, disk, due, up, flt>>

Ask(t, x) ==                     \* the agent asks for a tool
  /\ up /\ run = "RUNNING" /\ tool[t].st = "none" /\ \A u \in Tools : u < t => tool[u].st # "none"
  /\ Move(t, [New EXCEPT !.st = "CREATED", !.args = x])

Check(t, p) ==                   \* the policy's decision is recorded
  /\ up /\ tool[t].st = "CREATED" /\ Move(t, [tool[t] EXCEPT !.st = "POLICY_CHECKED", !.pol = p])

Sent(t, by) == [tool[t] EXCEPT !.st = "DISPATCHED", !.att = 1, !.by = by]
Pending(x)  == [st |-> "PENDING", args |-> x]
Others(t)   == {u \in Tools \ {t} : \E n \in 1..Last(u) : appr[u][n].st = "APPROVED"}
Obey(t) ==                       \* and followed
  /\ up /\ tool[t].st = "POLICY_CHECKED"
  /\ CASE tool[t].pol = "block" -> Move(t, [tool[t] EXCEPT !.st = "BLOCKED"])
       [] tool[t].pol = "allow" \/ (Bug = "reuse" /\ Others(t) # {}) ->
            LET r == Sent(t, 0) IN Commit([tool EXCEPT ![t] = r], appr, {Work(t, r)})
       [] OTHER -> Commit([tool EXCEPT ![t].st = "WAITING_APPROVAL"],
                          [appr EXCEPT ![t] = Append(@, Pending(tool[t].args))], {})

Performed(t) == \E i \in 1..Len(eff[t]) : eff[t][i].att = tool[t].att
Begin(t, s) ==                   \* the tool has begun, or a device has been asked
  /\ up /\ tool[t].st = "DISPATCHED" /\ Performed(t) /\ Move(t, [tool[t] EXCEPT !.st = s])

Result(t, s) ==                  \* its outcome; at once if nobody could take it
  /\ up /\ Performed(t)
  /\ \/ tool[t].st \in {"RUNNING", "WAITING_CLIENT"}
     \/ tool[t].st = "DISPATCHED" /\ s = "FAILED"
     \/ Bug = "revive" /\ tool[t].st = "TIMEOUT" /\ tool[t].took = "none"
  /\ Move(t, [tool[t] EXCEPT !.st = s])

Expire(t) ==                     \* the tool's time, from DISPATCHED on; or the approval's
  /\ up
  /\ \/ Out(tool[t].st) /\ Bug # "notimer" /\ Move(t, [tool[t] EXCEPT !.st = "TIMEOUT"])
     \/ Asked(t) /\ <<t, Last(t)>> \in due /\ Bug # "noexpire"
        /\ Commit([tool EXCEPT ![t].st = "TIMEOUT"], Mark(t, Last(t), "EXPIRED"), {})

Good(t) == \/ tool[t].st = "SUCCEEDED"
           \/ tool[t].st = "TIMEOUT" /\ Bug = "advancelate"
           \/ tool[t].st = "BLOCKED" /\ Bug = "advanceblocked"
           \/ tool[t].st = "FAILED"  /\ Bug = "advancefailed" /\ Performed(t)
           \/ tool[t].st = "FAILED"  /\ Bug = "advancedenied" /\ Last(t) > 0 /\ appr[t][Last(t)].st = "REJECTED"
Answer(t, h) ==                  \* the run takes the end: goes on from a result, or from a failure, or fails
  /\ up /\ ~Ended(run) /\ Over(tool[t].st) /\ tool[t].took = "none"
  /\ Good(t) = (h = "result")
  /\ LET ts == [tool EXCEPT ![t].took = h]
     IN IF h = "fail_run" THEN End("FAILED", ts) /\ UNCHANGED flt ELSE Commit(ts, appr, {})

Reply ==                         \* nothing is open, every end was taken
  /\ up /\ run = "RUNNING" /\ \A t \in Tools : tool[t].st = "none" \/ tool[t].took # "none"
  /\ End("DONE", tool) /\ UNCHANGED flt

Cancel ==
  /\ up /\ run # "none" /\ flt.cancel < MaxCancel
  /\ ~Ended(run) \/ Bug = "latecancel"
  /\ flt' = [flt EXCEPT !.cancel = @ + 1]
  /\ End("CANCELLED", tool)

\* ------------------------------------------------------------------ people
\* An approval is shown once it is durable; from then on a click on it may come at any time.
Shown(t, n) == n <= IF MaxCrash = 0 THEN Last(t) ELSE Len(disk.appr[t])
Decide(t, n, yes) ==
  LET s    == appr[t][n].st
      want == IF yes THEN "APPROVED" ELSE "REJECTED"
      m    == IF Bug = "anyid" THEN Last(t) ELSE n               \* the one that is decided
      sent == Sent(t, n)
  IN /\ up /\ Shown(t, n)
     /\ CASE appr[t][m].st = "PENDING" /\ Asked(t) /\ (<<t, m>> \notin due \/ Bug = "lateclick") ->
               IF yes THEN Commit([tool EXCEPT ![t] = sent], Mark(t, m, want), {Work(t, sent), Ack(t, n, yes, want)})
               ELSE IF Bug = "noack" THEN Commit([tool EXCEPT ![t].st = "FAILED"], Mark(t, m, want), {})
               ELSE Commit([tool EXCEPT ![t].st = "FAILED"], Mark(t, m, want), {Ack(t, n, yes, want)})
          [] s = "APPROVED" /\ ~yes /\ Bug = "flip" ->
               Commit(tool, Mark(t, n, want), {Ack(t, n, yes, want)})
          [] s = "APPROVED" /\ yes /\ Bug = "again" /\ Len(eff[t]) < 2 ->
               Commit(tool, appr, {Work(t, tool[t])})
          [] s # "PENDING" /\ Ack(t, n, yes, s) \notin told \cup out ->      \* it was decided: this is how
               Commit(tool, appr, {Ack(t, n, yes, s)})
          [] OTHER -> FALSE

Edit(t, x) ==                    \* other arguments are another approval
  /\ up /\ Asked(t) /\ x # tool[t].args /\ flt.edit < MaxEdit
  /\ flt' = [flt EXCEPT !.edit = @ + 1]
  /\ tool' = [tool EXCEPT ![t].args = x]
  /\ appr' = IF Bug = "swap" THEN appr ELSE [Mark(t, Last(t), "EXPIRED") EXCEPT ![t] = Append(@, Pending(x))]
  /\ Post({})
  /\ UNCHANGED <<run, disk, due, up>>

Tick(t) ==                       \* the time of an approval is over
  /\ Asked(t) /\ <<t, Last(t)>> \notin due
  /\ due' = due \cup {<<t, Last(t)>>}
  /\ UNCHANGED <<run, tool, appr, disk, out, told, eff, up, flt>>

\* ------------------------------------------------------------------ crash and restart
Crash ==
  /\ up /\ flt.crash < MaxCrash
  /\ flt' = [flt EXCEPT !.crash = @ + 1] /\ up' = FALSE
  /\ run' = disk.run /\ tool' = disk.tool /\ appr' = disk.appr
  /\ out' = {}
  /\ due' = {d \in due : d[2] <= Len(disk.appr[d[1]])}
  /\ UNCHANGED <<disk, told, eff>>

\* What was out is repeated, as a new attempt, if that is safe; else nobody knows its outcome.
Resumed(t) ==
  LET r == tool[t]
  IN CASE ~Out(r.st) -> r
       [] Bug = "sameattempt" -> r
       [] t \in Safe \/ Bug = "unsafe" -> [r EXCEPT !.att = @ + 1]
       [] OTHER -> [r EXCEPT !.st = "FAILED"]
Restart ==
  /\ ~up /\ up' = TRUE
  /\ tool' = [t \in Tools |-> Resumed(t)]
  /\ run' = IF Ended(run) \/ run = "none" THEN run ELSE Seen(tool')
  /\ Post({Work(t, tool'[t]) : t \in {u \in Tools : Out(tool'[u].st)}})
  /\ UNCHANGED <<appr, disk, due, flt>>

\* The run has ended. Any other state without a next one is a deadlock, which TLC reports.
Quiet == Ended(run)

\* A defect only: a tool's timer fires while the node is down.
Late(t) == Bug = "deadtimer" /\ ~up /\ Out(tool[t].st) /\ Move(t, [tool[t] EXCEPT !.st = "TIMEOUT"])

Next ==
  \/ Start \/ Reply \/ Cancel \/ Sync \/ Crash \/ Restart
  \/ \E t \in Tools : \/ Obey(t) \/ Expire(t) \/ Tick(t) \/ Late(t)
                      \/ \E x \in Args : Ask(t, x) \/ Edit(t, x)
                      \/ \E p \in Policies : Check(t, p)
                      \/ \E s \in Begun : Begin(t, s)
                      \/ \E s \in {"SUCCEEDED", "FAILED"} : Result(t, s)
                      \/ \E h \in {"result", "failure", "fail_run"} : Answer(t, h)
                      \/ \E n \in 1..(MaxEdit + 1), yes \in BOOLEAN : Decide(t, n, yes)
  \/ (Quiet /\ UNCHANGED vars)
Spec == Init /\ [][Next]_vars

\* The node does its part and timers fire. No person clicks, no tool answers, nothing is asked for.
TimeSpec == Spec /\ WF_vars(Start) /\ WF_vars(Reply) /\ WF_vars(Restart)
                 /\ \A t \in Tools : /\ WF_vars(\E p \in Policies : Check(t, p)) /\ WF_vars(Obey(t))
                                     /\ WF_vars(Expire(t)) /\ WF_vars(Tick(t))
                                     /\ WF_vars(\E h \in {"result", "failure", "fail_run"} : Answer(t, h))

\* ---------------------------------------------------------------- properties
TypeOK == /\ run \in {"none", "RUNNING", "PAUSED_WAITING_APPROVAL", "PAUSED_WAITING_TOOL", "DONE", "FAILED", "CANCELLED"}
          /\ \A t \in Tools :
               /\ tool[t].st \in {"none", "CREATED", "POLICY_CHECKED", "BLOCKED", "WAITING_APPROVAL", "DISPATCHED",
                                  "RUNNING", "WAITING_CLIENT", "SUCCEEDED", "FAILED", "TIMEOUT"}
               /\ \A n \in 1..Last(t) : appr[t][n].st \in {"PENDING", "APPROVED", "REJECTED", "EXPIRED"}
          /\ \A d \in due : d[2] \in 1..Last(d[1])
\* Only a tool call that SUCCEEDED gives a step its result.
OnlySucceededAdvances == \A t \in Tools : tool[t].took = "result" => tool[t].st = "SUCCEEDED"
\* A person's decision is told one way only, comes in time, and permits one use with the arguments they saw.
ApprovalOnce ==
  /\ \A a, b \in told : a.t = b.t /\ a.n = b.n => a.x = b.x
  /\ \A t \in Tools : \A n \in 1..Last(t) : appr[t][n].st = "APPROVED" => <<t, n>> \notin due
  /\ \A t \in Tools : \A i \in 1..Len(eff[t]) : tool[t].pol = "ask" =>
       LET e == eff[t][i]
       IN /\ e.n \in 1..Len(disk.appr[t]) \/ (MaxCrash = 0 /\ e.n \in 1..Last(t))
          /\ MaxCrash = 0 \/ disk.appr[t][e.n].st = "APPROVED"
          /\ appr[t][e.n].st = "APPROVED" /\ appr[t][e.n].args = e.x
\* A decision is acknowledged by the commit that records it.
DecisionAnswered == \A t \in Tools : \A n \in 1..Last(t) :
  appr[t][n].st \in {"APPROVED", "REJECTED"} => \E m \in told \cup out : m.k = "ack" /\ m.t = t /\ m.x = appr[t][n].st
EffectOncePerAttempt == \A t \in Tools :
  /\ \A i, j \in 1..Len(eff[t]) : eff[t][i].att = eff[t][j].att => i = j
  /\ t \in Safe \/ Len(eff[t]) <= 1
\* A run begins before it ends, and nothing follows an end, of the run or of a tool call. The run takes the end of
\* a tool call once. (A crash may restore the state before an end that is not durable.) An approval that has
\* expired stays expired, also after a crash.
TerminalStable == [][
  /\ flt'.crash = flt.crash =>
       /\ Ended(run) => run' = run
       /\ run = "none" => ~Ended(run')
       /\ \A t \in Tools : /\ Over(tool[t].st) => tool'[t].st = tool[t].st
                           /\ tool[t].took # "none" => tool'[t].took = tool[t].took
  /\ \A d \in due : d[2] <= Len(appr'[d[1]]) => d \in due']_vars
\* A tool call that is open, or an approval that is pending, has a run that waits for it.
Structured == Ended(run) => \A t \in Tools : ~Open(tool[t].st) /\ \A n \in 1..Last(t) : appr[t][n].st # "PENDING"
\* When the run has ended, nothing is approved and nothing begins.
CancelledNeverStarts == [][Ended(run) /\ flt'.crash = flt.crash => \A t \in Tools :
  /\ tool'[t].st # tool[t].st => ~Out(tool'[t].st)
  /\ appr'[t] # appr[t] => \A n \in 1..Len(appr'[t]) : appr'[t][n].st # "APPROVED"]_vars
\* A node that has crashed takes no step until it restarts.
SilentWhenDown == [][~up /\ ~up' => UNCHANGED <<run, tool, appr, disk, out, told, eff>>]_vars
\* Every run ends, whatever people and tools do: who waits for a person waits no longer than the approval's time.
EveryRunEnds == run # "none" ~> Ended(run)

\* ---------------------------------------------- what must be possible: each must be violated
Not_TwoClicks         == ~\E a, b \in told : a.t = b.t /\ a.n = b.n /\ a.x = "APPROVED" /\ a.att # b.att
Not_ClickTooLate      == ~\E a \in told : a.x = "EXPIRED" /\ a.att = 1
Not_EditedAndApproved == ~\E t \in Tools : eff[t] # <<>> /\ eff[t][1].n = 2
Not_DoneThoughTimeout == ~\E t \in Tools : tool[t].st = "TIMEOUT" /\ eff[t] # <<>>
Not_DoneThoughCancelled == ~(run = "CANCELLED" /\ \E t \in Tools : eff[t] # <<>>)
Not_FailureHandled    == ~(run = "DONE" /\ \E t \in Tools : tool[t].took = "failure")
Not_UnknownOutcome    == ~(flt.crash > 0 /\ up /\ \E t \in Tools : tool[t].st = "FAILED" /\ tool[t].took = "none" /\ eff[t] = <<>>)
Not_DoneAgain         == ~\E t \in Tools : tool[t].st = "SUCCEEDED" /\ Len(eff[t]) = 2
Not_GrantForgotten    == [][~(up /\ ~up' /\ \E t \in Tools : \E n \in 1..Last(t) :
                            appr[t][n].st = "APPROVED" /\ appr'[t][n].st = "PENDING")]_vars
Not_CrashWaiting      == [][~(up /\ ~up' /\ \E t \in Tools : tool'[t].st = "WAITING_APPROVAL")]_vars
Not_CrashDispatched   == [][~(up /\ ~up' /\ \E t \in Tools : tool'[t].st = "DISPATCHED")]_vars
Not_CrashRunning      == [][~(up /\ ~up' /\ \E t \in Tools : tool'[t].st = "RUNNING")]_vars
Not_CrashAtDevice     == [][~(up /\ ~up' /\ \E t \in Tools : tool'[t].st = "WAITING_CLIENT")]_vars
=============================================================================
