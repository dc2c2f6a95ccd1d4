// SPDX-License-Identifier: Apache-2.0

package command

import (
	"math"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
)

// Bounds of the decoder. FrameBytesMax bounds the sum.
const (
	listMax  = 1 << 20 // elements of a list
	textMax  = 1 << 20 // a text in bytes
	bytesMax = FrameBytesMax
)

type encoder struct{ actor.Encoder }

type decoder struct{ *actor.Decoder }

func (d *decoder) text() string { return d.String(textMax) }
func (d *decoder) int() int     { return int(d.UintMax(math.MaxInt64, "number")) }
func (e *encoder) int(n int)    { e.Uint(uint64(n)) }

func (d *decoder) time() actor.Time         { return actor.Time(d.Int()) }
func (d *decoder) duration() actor.Duration { return actor.Duration(d.Int()) }

// require records an error unless ok.
func (d *decoder) require(ok bool, problem string) {
	if !ok {
		d.Fail("%s", problem)
	}
}

// list appends the length of a list and its elements.
func list[T any](e *encoder, all []T, one func(*T)) {
	e.Uint(uint64(len(all)))
	for i := range all {
		one(&all[i])
	}
}

// listOf reads a list. Its length is untrusted until the elements have been read.
func listOf[T any](d *decoder, one func() T) []T {
	n := d.Count(listMax, "elements")
	if n == 0 {
		return nil
	}
	all := make([]T, 0, min(n, 16))
	for range n {
		v := one()
		if d.Err() != nil {
			return nil
		}
		all = append(all, v)
	}
	return all
}

func (e *encoder) principal(p actor.Principal) {
	e.String(p.Tenant)
	e.String(p.User)
	e.String(p.Key)
	list(e, p.Scopes, func(s *string) { e.String(*s) })
}

// principal reads a principal within its bounds.
func (d *decoder) principal() actor.Principal {
	p := actor.Principal{Tenant: d.String(actor.NameBytesMax), User: d.String(actor.PrincipalTextBytesMax), Key: d.String(actor.PrincipalTextBytesMax)}
	for range d.Count(actor.PrincipalScopesMax, "scopes") {
		p.Scopes = append(p.Scopes, d.String(actor.NameBytesMax))
	}
	if err := p.Check(); err != nil && d.Err() == nil {
		d.Fail("%v", err)
	}
	return p
}

// The tags of queries. The result of a query has the same tag.
const (
	tagAgents = iota + 1
	tagOwner
	tagRun
	tagRuns
	tagWaiting
	tagEvents
	tagActors
	tagHealth
	tagStats
	tagSessions
	tagSession
	tagMessages
	tagContext
	tagOpenRun
	tagEveryRun
	tagTools
	tagToolCall
	tagApprovals
	tagSessionEvents
	tagSessionEnd
	tagDeviceCalls
	tagGateway
	tagExternal
	tagPermit
	tagBackup
	tagModels
	tagChat
	tagChatPart
	tagTasks
	tagWorking
	tagMemory
	tagSchedules
	tagSessionState
	tagPrompts
)

func (e *encoder) query(q Query) {
	switch q := q.(type) {
	case AgentsQuery:
		e.Uint(tagAgents)
	case OwnerQuery:
		e.Uint(tagOwner)
		e.CallID(q.Run)
	case OpenRunQuery:
		e.Uint(tagOpenRun)
		e.CallID(q.Run)
	case WorkingQuery:
		e.Uint(tagWorking)
		list(e, q.Agents, func(name *string) { e.String(*name) })
	case RunQuery:
		e.Uint(tagRun)
		e.CallID(q.Run)
	case RunsQuery:
		e.Uint(tagRuns)
		e.filter(&q.Filter)
		e.CallID(q.Before)
		e.Int(int64(q.Limit))
	case EveryRunQuery:
		e.Uint(tagEveryRun)
		e.filter(&q.Filter)
		e.String(q.From)
		e.CallID(q.Before)
		e.Int(int64(q.Limit))
	case WaitingQuery:
		e.Uint(tagWaiting)
		e.CallID(q.Run)
	case EventsQuery:
		e.Uint(tagEvents)
		e.CallID(q.Run)
		e.Uint(q.After)
		e.Int(int64(q.Limit))
		e.Bool(q.Strict)
	case ActorsQuery:
		e.Uint(tagActors)
		e.String(q.Agent)
		e.Int(int64(q.Limit))
	case HealthQuery:
		e.Uint(tagHealth)
	case StatsQuery:
		e.Uint(tagStats)
	case SessionsQuery:
		e.Uint(tagSessions)
		e.String(q.Before)
		e.Int(int64(q.Limit))
	case SessionQuery:
		e.Uint(tagSession)
		e.String(q.Session)
	case ContextQuery:
		e.Uint(tagContext)
		e.String(q.Session)
		e.String(q.ID)
		e.Uint(q.Version)
	case MessagesQuery:
		e.Uint(tagMessages)
		e.String(q.Session)
		e.String(q.Agent)
		e.CallID(q.Before.Call)
		e.Bool(q.Before.Answer)
		e.Int(int64(q.Limit))
	case SessionEventsQuery:
		e.Uint(tagSessionEvents)
		e.String(q.Session)
		e.cursor(q.After)
		e.Int(int64(q.Limit))
	case SessionEndQuery:
		e.Uint(tagSessionEnd)
		e.String(q.Session)
	case DeviceCallsQuery:
		e.Uint(tagDeviceCalls)
		e.String(q.Device)
	case TasksQuery:
		e.Uint(tagTasks)
		e.String(q.Session)
		e.CallID(q.Call)
	case SchedulesQuery:
		e.Uint(tagSchedules)
		e.Bool(q.EveryUser)
	case ToolsQuery:
		e.Uint(tagTools)
	case ToolCallQuery:
		e.Uint(tagToolCall)
		e.toolCallID(q.ID)
	case ApprovalsQuery:
		e.Uint(tagApprovals)
		e.CallID(q.Root)
		e.Int(int64(q.After.Turn))
		e.Int(int64(q.After.Created))
		e.toolCallID(q.After.ID)
		e.Int(int64(q.Limit))
		e.Bool(q.EveryUser)
	case GatewayQuery:
		e.Uint(tagGateway)
		e.Uint(q.After)
	case ExternalQuery:
		e.Uint(tagExternal)
		e.String(q.Name)
		e.Bool(q.Heartbeat)
	case PermitQuery:
		e.Uint(tagPermit)
		e.String(q.URL)
		e.String(q.AuthEnv)
		e.Bytes(q.Definition)
	case BackupQuery:
		e.Uint(tagBackup)
		e.String(q.Name)
	case ModelsQuery:
		e.Uint(tagModels)
	case ChatQuery:
		e.Uint(tagChat)
		e.Bytes(q.Body)
		e.String(q.Trace)
		e.String(q.Share)
		e.String(q.Agent)
		e.CallID(q.Run)
		e.ID(q.Owner)
	case ChatPartQuery:
		e.Uint(tagChatPart)
		e.CallID(q.Chat)
		e.Bool(q.Cancel)
	case MemoryQuery:
		e.Uint(tagMemory)
		e.memoryQuery(&q)
	case SessionStateQuery:
		e.Uint(tagSessionState)
		e.String(q.Session)
		e.String(q.Output)
	case PromptsQuery:
		e.Uint(tagPrompts)
		e.CallID(q.Run)
		e.Uint(q.After)
		e.Int(int64(q.Limit))
	default:
		e.Uint(0) // no query has this tag
	}
}

func (d *decoder) query() Query {
	switch tag := d.Uint(); tag {
	case tagAgents:
		return AgentsQuery{}
	case tagOwner:
		return OwnerQuery{d.CallID()}
	case tagOpenRun:
		return OpenRunQuery{d.CallID()}
	case tagWorking:
		return WorkingQuery{listOf(d, d.text)}
	case tagRun:
		return RunQuery{d.CallID()}
	case tagRuns:
		return RunsQuery{d.filter(), d.CallID(), int(d.Int())}
	case tagEveryRun:
		return EveryRunQuery{d.filter(), d.text(), d.CallID(), int(d.Int())}
	case tagWaiting:
		return WaitingQuery{d.CallID()}
	case tagEvents:
		return EventsQuery{d.CallID(), d.Uint(), int(d.Int()), d.Bool()}
	case tagActors:
		return ActorsQuery{d.text(), int(d.Int())}
	case tagHealth:
		return HealthQuery{}
	case tagStats:
		return StatsQuery{}
	case tagSessions:
		return SessionsQuery{d.text(), int(d.Int())}
	case tagSession:
		return SessionQuery{d.text()}
	case tagContext:
		return ContextQuery{d.text(), d.text(), d.Uint()}
	case tagMessages:
		return MessagesQuery{d.text(), d.text(), actor.MessageID{Call: d.CallID(), Answer: d.Bool()}, int(d.Int())}
	case tagSessionEvents:
		return SessionEventsQuery{d.text(), d.cursor(), int(d.Int())}
	case tagSessionEnd:
		return SessionEndQuery{d.text()}
	case tagDeviceCalls:
		return DeviceCallsQuery{d.text()}
	case tagTasks:
		return TasksQuery{d.text(), d.CallID()}
	case tagSchedules:
		return SchedulesQuery{d.Bool()}
	case tagTools:
		return ToolsQuery{}
	case tagToolCall:
		return ToolCallQuery{d.toolCallID()}
	case tagApprovals:
		return ApprovalsQuery{d.CallID(), ApprovalPosition{int(d.Int()), d.time(), d.toolCallID()}, int(d.Int()), d.Bool()}
	case tagGateway:
		return GatewayQuery{d.Uint()}
	case tagExternal:
		return ExternalQuery{d.text(), d.Bool()}
	case tagPermit:
		return PermitQuery{d.text(), d.text(), d.Bytes(bytesMax)}
	case tagBackup:
		return BackupQuery{d.text()}
	case tagModels:
		return ModelsQuery{}
	case tagChat:
		return ChatQuery{d.Bytes(bytesMax), d.text(), d.text(), d.text(), d.CallID(), d.ID()}
	case tagChatPart:
		return ChatPartQuery{d.CallID(), d.Bool()}
	case tagMemory:
		return d.memoryQuery()
	case tagSessionState:
		return SessionStateQuery{d.text(), d.text()}
	case tagPrompts:
		return PromptsQuery{d.CallID(), d.Uint(), int(d.Int())}
	default:
		d.Fail("unknown query %d", tag)
		return nil
	}
}

func (e *encoder) result(r Result) {
	switch r := r.(type) {
	case Agents:
		e.Uint(tagAgents)
		list(e, r.All, e.agent)
	case Owner:
		e.Uint(tagOwner)
		e.owner(r)
	case Working:
		e.Uint(tagWorking)
		list(e, r.All, func(o *Owner) { e.owner(*o) })
	case Run:
		e.Uint(tagRun)
		e.run(&r)
	case Runs:
		e.Uint(tagRuns)
		list(e, r.Page.All, e.summary)
		e.CallID(r.Page.Next)
	case EveryRun:
		e.Uint(tagEveryRun)
		list(e, r.Page.All, e.summary)
		e.CallID(r.Page.Next)
		e.String(r.From)
	case Waiting:
		e.Uint(tagWaiting)
		e.Uint(uint64(r.Status))
		e.Bool(r.Found)
		e.CallID(r.Run)
		e.String(r.Name)
		e.Int(int64(r.Until))
	case Events:
		e.Uint(tagEvents)
		e.CallID(r.Run)
		e.Uint(r.After)
		list(e, r.All, func(v *Event) { e.Uint(v.Seq); e.Bytes(v.Body) })
		e.Bool(r.Ended)
	case Actors:
		e.Uint(tagActors)
		list(e, r.All, e.actor)
	case Health:
		e.Uint(tagHealth)
		e.String(r.Reason)
		e.String(r.Database)
	case Stats:
		e.Uint(tagStats)
		e.stats(&r)
	case Sessions:
		e.Uint(tagSessions)
		list(e, r.All, e.session)
		e.String(r.Next)
	case Session:
		e.Uint(tagSession)
		e.session(&r)
	case Context:
		e.Uint(tagContext)
		e.String(r.OwnerType)
		e.String(r.OwnerID)
		e.Uint(r.Version)
		e.Int(int64(r.At))
		e.Bytes(r.Value)
	case Messages:
		e.Uint(tagMessages)
		e.messages(&r)
	case SessionEvents:
		e.Uint(tagSessionEvents)
		e.sessionEvents(&r)
	case SessionEnd:
		e.Uint(tagSessionEnd)
		e.cursor(r.Cursor)
		e.Bool(r.Exists)
	case DeviceCalls:
		e.Uint(tagDeviceCalls)
		list(e, r.All, e.deviceCall)
	case Schedules:
		e.Uint(tagSchedules)
		list(e, r.All, e.schedule)
		e.Bool(r.More)
	case Tasks:
		e.Uint(tagTasks)
		list(e, r.All, e.task)
		e.Bool(r.More)
	case Prompts:
		e.Uint(tagPrompts)
		e.prompts(&r)
	case Tools:
		e.Uint(tagTools)
		list(e, r.All, e.tool)
	case ToolCall:
		e.Uint(tagToolCall)
		e.toolCall(&r)
	case Approvals:
		e.Uint(tagApprovals)
		list(e, r.All, e.approval)
		e.Bool(r.More)
	case Gateway:
		e.Uint(tagGateway)
		e.gateway(&r)
	case External:
		e.Uint(tagExternal)
		e.external(r)
	case Permit:
		e.Uint(tagPermit)
		e.String(r.Problem)
	case Backup:
		e.Uint(tagBackup)
		e.backup(&r)
	case Models:
		e.Uint(tagModels)
		list(e, r.All, func(name *string) { e.String(*name) })
	case Chat:
		e.Uint(tagChat)
		e.CallID(r.ID)
		e.String(r.Model)
	case ChatPart:
		e.Uint(tagChatPart)
		e.chatPart(&r)
	case Memory:
		e.Uint(tagMemory)
		e.Bytes(r.JSON)
	case SessionState:
		e.Uint(tagSessionState)
		e.Bytes(r.JSON)
	default:
		e.Uint(0) // no result has this tag
	}
}

func (d *decoder) result() Result {
	switch tag := d.Uint(); tag {
	case tagAgents:
		return Agents{listOf(d, d.agent)}
	case tagOwner:
		return d.owner()
	case tagWorking:
		return Working{listOf(d, d.owner)}
	case tagRun:
		return d.run()
	case tagRuns:
		return Runs{runs.Page{All: listOf(d, d.summary), Next: d.CallID()}}
	case tagEveryRun:
		return EveryRun{runs.Page{All: listOf(d, d.summary), Next: d.CallID()}, d.text()}
	case tagWaiting:
		return Waiting{d.status(), d.Bool(), d.CallID(), d.text(), d.time()}
	case tagEvents:
		return Events{d.CallID(), d.Uint(), listOf(d, func() Event { return Event{d.Uint(), d.Bytes(bytesMax)} }), d.Bool()}
	case tagActors:
		return Actors{listOf(d, d.actor)}
	case tagHealth:
		return Health{d.text(), d.text()}
	case tagStats:
		return d.stats()
	case tagSessions:
		return Sessions{listOf(d, d.session), d.text()}
	case tagSession:
		return d.session()
	case tagContext:
		return Context{d.text(), d.text(), d.Uint(), d.time(), d.Bytes(bytesMax)}
	case tagMessages:
		return d.messages()
	case tagSessionEvents:
		return d.sessionEvents()
	case tagSessionEnd:
		return SessionEnd{d.cursor(), d.Bool()}
	case tagDeviceCalls:
		return DeviceCalls{listOf(d, d.deviceCall)}
	case tagSchedules:
		return Schedules{listOf(d, d.schedule), d.Bool()}
	case tagTasks:
		return Tasks{listOf(d, d.task), d.Bool()}
	case tagPrompts:
		return d.prompts()
	case tagTools:
		return Tools{listOf(d, d.tool)}
	case tagToolCall:
		return d.toolCall()
	case tagApprovals:
		return Approvals{listOf(d, d.approval), d.Bool()}
	case tagGateway:
		return d.gateway()
	case tagExternal:
		return External{d.Bool(), d.Bool(), d.time(), d.text()}
	case tagPermit:
		return Permit{d.text()}
	case tagBackup:
		return d.backup()
	case tagModels:
		return Models{listOf(d, d.text)}
	case tagChat:
		return Chat{d.CallID(), d.text()}
	case tagChatPart:
		return d.chatPart()
	case tagMemory:
		return Memory{d.Bytes(bytesMax)}
	case tagSessionState:
		return SessionState{d.Bytes(bytesMax)}
	default:
		d.Fail("unknown result %d", tag)
		return nil
	}
}

func (d *decoder) status() runs.Status {
	return runs.Status(d.UintMax(uint64(runs.Cancelled), "status of a run"))
}

func (d *decoder) outcome() actor.Status { return actor.Status(d.UintMax(math.MaxUint8, "outcome")) }

func (e *encoder) agent(a *Agent) {
	e.String(a.Name)
	e.Hash(a.Hash)
	e.String(a.Doc)
	e.Uint(uint64(a.Kind))
	e.Bytes(a.Spec)
	e.Bool(a.System)
	e.Uint(uint64(a.Durability))
	e.Bool(a.OneSession)
	e.String(a.Owner)
	list(e, a.Former, func(owner *string) { e.String(*owner) })
	e.Bytes(a.Declares)
}

func (d *decoder) agent() Agent {
	return Agent{Name: d.text(), Hash: d.Hash(), Doc: d.text(), Kind: actor.AgentKind(d.UintMax(uint64(actor.External), "kind of agent")),
		Spec: d.Bytes(bytesMax), System: d.Bool(), Durability: actor.Durability(d.UintMax(uint64(actor.Volatile), "durability")), OneSession: d.Bool(), Owner: d.text(), Former: listOf(d, d.text), Declares: d.Bytes(bytesMax)}
}

func (e *encoder) owner(o Owner) {
	e.CallID(o.Run)
	e.CallID(o.Root)
	e.ID(o.Actor)
}

func (d *decoder) owner() Owner { return Owner{d.CallID(), d.CallID(), d.ID()} }

func (e *encoder) run(r *Run) {
	e.owner(r.Owner)
	v := &r.Record
	e.CallID(v.Run)
	e.CallID(v.Root)
	e.CallID(v.Parent)
	e.ID(v.Actor)
	e.IDs(v.Chain)
	e.Int(int64(v.Left))
	e.Uint(uint64(v.Attempt))
	e.String(v.User)
	e.String(v.Key)
	e.String(v.Project)
	e.String(v.Priority)
	e.String(v.Trace)
	e.CallID(v.Claimed)
	e.Uint(uint64(v.Status))
	e.Uint(v.Seq)
	e.Int(int64(v.Created))
	e.Int(int64(v.Started))
	e.Int(int64(v.Ended))
	list(e, v.Waits, func(w *runs.Wait) { e.String(w.Name); e.Int(int64(w.Until)) })
	list(e, v.Pauses, func(p *runs.Pause) { e.String(p.Name); e.CallID(p.Child); e.Int(int64(p.Until)) })
	list(e, v.Clamped, func(c *runs.Clamp) { e.String(c.Name); e.Int(int64(c.Asked)); e.Int(int64(c.Left)) })
	list(e, v.Children, e.child)
	e.Uint(uint64(v.Outcome))
	e.String(v.Text)
	e.Bool(v.Truncated)
	list(e, v.Warnings, func(w *string) { e.String(*w) })
	e.Refusal(v.Refusal)
	e.Usage(v.Usage)
	e.Usage(v.Tree)
	list(e, v.Approvals(), func(c *runs.ToolCall) {
		e.toolCallID(c.ID)
		e.String(c.Name)
		e.String(c.Approval.Summary)
		e.Int(int64(c.Approval.Until))
	})
}

// run reads a run. Its record can be shown; no event can be applied to it.
func (d *decoder) run() Run {
	r := Run{Owner: d.owner()}
	v := &r.Record
	v.Run, v.Root, v.Parent, v.Actor, v.Chain = d.CallID(), d.CallID(), d.CallID(), d.ID(), d.IDs()
	v.Left, v.Attempt, v.User, v.Key = d.duration(), uint32(d.UintMax(math.MaxUint32, "attempt")), d.text(), d.text()
	v.Project, v.Priority = d.text(), d.text()
	v.Trace, v.Claimed = d.text(), d.CallID()
	v.Status, v.Seq = d.status(), d.Uint()
	v.Created, v.Started, v.Ended = d.time(), d.time(), d.time()
	v.Waits = listOf(d, func() runs.Wait { return runs.Wait{Name: d.text(), Until: d.time()} })
	v.Pauses = listOf(d, func() runs.Pause { return runs.Pause{Name: d.text(), Child: d.CallID(), Until: d.time()} })
	v.Clamped = listOf(d, func() runs.Clamp {
		return runs.Clamp{Name: d.text(), Asked: actor.Duration(d.Int()), Left: actor.Duration(d.Int())}
	})
	v.Children = listOf(d, d.child)
	v.Outcome, v.Text, v.Truncated = d.outcome(), d.text(), d.Bool()
	v.Warnings, v.Refusal = listOf(d, d.text), d.Refusal()
	v.Usage, v.Tree = d.Usage(), d.Usage()
	r.Record = v.WithApprovals(listOf(d, func() runs.ToolCall {
		return runs.ToolCall{ID: d.toolCallID(), Name: d.text(), Status: runs.ToolStatusWaitingApproval, Approval: &runs.Approval{Summary: d.text(), Until: d.time()}}
	}))
	return r
}

func (e *encoder) filter(f *runs.Filter) {
	e.String(f.Agent)
	e.String(f.Session)
	e.Uint(uint64(f.Status))
	e.Int(int64(f.Since))
	e.Int(int64(f.Until))
	e.CallID(f.Root)
	e.CallID(f.Parent)
	e.Bool(f.Calls)
	e.Bool(f.System)
	e.Bool(f.Queued)
	e.String(f.Workflow)
}

func (d *decoder) filter() runs.Filter {
	return runs.Filter{Agent: d.text(), Session: d.text(), Status: d.status(), Since: d.time(), Until: d.time(),
		Root: d.CallID(), Parent: d.CallID(), Calls: d.Bool(), System: d.Bool(), Queued: d.Bool(), Workflow: d.text()}
}

func (e *encoder) summary(s *runs.Summary) {
	e.CallID(s.Run)
	e.CallID(s.Root)
	e.CallID(s.Parent)
	e.ID(s.Actor)
	e.String(s.User)
	e.int(s.Depth)
	e.String(s.Workflow)
	e.String(s.Project)
	e.String(s.Priority)
	e.Uint(uint64(s.Status))
	e.Int(int64(s.Created))
	e.Int(int64(s.Started))
	e.Int(int64(s.Ended))
	e.String(s.Waits)
	e.Int(int64(s.Until))
	e.Uint(uint64(s.Outcome))
	e.String(s.Text)
	e.Bool(s.Truncated)
	e.Refusal(s.Refusal)
	e.Usage(s.Usage)
	e.Usage(s.Tree)
}

func (d *decoder) summary() runs.Summary {
	return runs.Summary{Run: d.CallID(), Root: d.CallID(), Parent: d.CallID(), Actor: d.ID(), User: d.text(), Depth: d.int(), Workflow: d.text(), Project: d.text(),
		Priority: d.text(), Status: d.status(), Created: d.time(), Started: d.time(), Ended: d.time(),
		Waits: d.text(), Until: d.time(), Outcome: d.outcome(), Text: d.text(), Truncated: d.Bool(), Refusal: d.Refusal(),
		Usage: d.Usage(), Tree: d.Usage()}
}

func (e *encoder) child(c *runs.Child) {
	e.CallID(c.Run)
	e.ID(c.Actor)
	e.String(c.Target)
	e.Int(int64(c.Left))
	e.Int(int64(c.At))
	e.Int(int64(c.Ended))
	e.Uint(uint64(c.Status))
	e.Refusal(c.Refusal)
}

func (d *decoder) child() runs.Child {
	return runs.Child{Run: d.CallID(), Actor: d.ID(), Target: d.text(), Left: d.duration(), At: d.time(),
		Ended: d.time(), Status: d.outcome(), Refusal: d.Refusal()}
}

func (e *encoder) callIDs(ids []actor.CallID) { list(e, ids, func(id *actor.CallID) { e.CallID(*id) }) }

func (e *encoder) actor(a *history.Actor) {
	e.ID(a.ID)
	e.Uint(uint64(a.Epoch))
	e.Bool(a.Loaded)
	e.callIDs(a.Queue)
	e.int(a.Bytes)
	list(e, a.Turns, func(t *history.Turn) {
		e.CallID(t.Run)
		e.Int(int64(t.Due))
		e.callIDs(t.Open)
		list(e, t.OpenDue, func(due *actor.Time) { e.Int(int64(*due)) })
	})
}

func (d *decoder) actor() history.Actor {
	return history.Actor{ID: d.ID(), Epoch: actor.Epoch(d.Uint()), Loaded: d.Bool(), Queue: listOf(d, d.CallID), Bytes: d.int(),
		Turns: listOf(d, func() history.Turn {
			return history.Turn{Run: d.CallID(), Due: d.time(), Open: listOf(d, d.CallID), OpenDue: listOf(d, d.time)}
		})}
}

func (e *encoder) stats(s *Stats) {
	list(e, s.Cells, func(c *CellStats) {
		e.int(c.Mailbox)
		e.int(c.Actors)
		for _, n := range c.Queued {
			e.int(n)
		}
		e.int(c.Outstanding)
		e.Uint(c.Incarnation)
		e.Uint(c.Steps)
		e.Int(int64(c.StepLongest))
	})
	e.int(s.Clients)
	e.int(s.Backlog)
	list(e, s.Refusals, func(r *RefusalStats) { e.Uint(uint64(r.Reason)); e.Uint(uint64(r.Scope)); e.Uint(r.Count) })
	e.runStats(s.Runs)
	list(e, s.Asks, func(a *AskStats) {
		e.Uint(uint64(a.Kind))
		e.int(a.UnderWay)
		e.histogram(&a.Took)
	})
	list(e, s.Agents, func(a *AgentStats) {
		e.String(a.Agent)
		e.runStats(a.Runs)
		e.histogram(&a.Took)
		e.int(a.Outstanding)
		e.Uint(a.InputTokens)
		e.Uint(a.OutputTokens)
	})
	list(e, s.Targets, func(t *TargetStats) {
		e.Uint(uint64(t.Kind))
		e.String(t.Name)
		e.histogram(&t.Took)
		e.outcomes(t.Outcomes)
		e.Uint(t.InputTokens)
		e.Uint(t.OutputTokens)
	})
	e.histogram(&s.Waits.Took)
	e.outcomes(s.Waits.Outcomes)
	list(e, s.MCP, func(m *MCPStats) {
		e.String(m.Name)
		e.Bool(m.Up)
		e.int(m.Tools)
		e.Bool(m.Changed)
		e.Uint(m.Restarts)
	})
	list(e, s.Circuits, func(c *CircuitStats) {
		e.String(c.Agent)
		e.Bool(c.Open)
		e.Uint(c.Opened)
	})
	list(e, s.Routes, func(r *RouteStats) {
		e.String(r.Agent)
		e.String(r.Intent)
		e.String(r.Course)
		e.Uint(r.Count)
	})
	e.Bool(s.Approvals.Known)
	e.int(s.Approvals.Waiting)
	e.Int(int64(s.Approvals.Oldest))
	e.Uint(s.Unknown)
	list(e, s.Webhooks, func(w *WebhookStats) {
		e.String(w.Name)
		e.Uint(w.Delivered)
		e.Uint(w.Failed)
		e.Uint(w.GivenUp)
		e.int(w.Waiting)
		e.Int(int64(w.Oldest))
	})
	e.int(s.Cluster.Members)
	e.Uint(s.Cluster.Epoch)
	e.Int(int64(s.Cluster.Lease))
	e.Bool(s.Prompts.On)
	e.Uint(s.Prompts.Recorded)
	e.Uint(s.Prompts.Dropped)
	e.Int(s.Prompts.Bytes)
}

func (e *encoder) runStats(all []RunStats) {
	list(e, all, func(r *RunStats) { e.Uint(uint64(r.Status)); e.Uint(r.Count) })
}

func (e *encoder) outcomes(all []OutcomeStats) {
	list(e, all, func(o *OutcomeStats) { e.Uint(uint64(o.Reason)); e.Uint(o.Count) })
}

func (e *encoder) histogram(h *Histogram) {
	list(e, h.Counts, func(n *uint64) { e.Uint(*n) })
	e.Int(int64(h.Sum))
}

func (d *decoder) lanes() (n [actor.Low]int) {
	for i := range n {
		n[i] = d.int()
	}
	return n
}

func (d *decoder) stats() Stats {
	return Stats{
		Cells: listOf(d, func() CellStats {
			return CellStats{d.int(), d.int(), d.lanes(), d.int(), d.Uint(), d.Uint(), d.duration()}
		}),
		Clients: d.int(), Backlog: d.int(),
		Refusals: listOf(d, func() RefusalStats {
			return RefusalStats{actor.Reason(d.UintMax(math.MaxUint8, "reason")), actor.Scope(d.UintMax(uint64(actor.ScopeNode), "scope")), d.Uint()}
		}),
		Runs: d.runStats(),
		Asks: listOf(d, func() AskStats { return AskStats{d.askKind(), d.int(), d.histogram()} }),
		Agents: listOf(d, func() AgentStats {
			return AgentStats{d.text(), d.runStats(), d.histogram(), d.int(), d.Uint(), d.Uint()}
		}),
		Targets: listOf(d, func() TargetStats {
			return TargetStats{d.askKind(), d.text(), d.histogram(), d.outcomes(), d.Uint(), d.Uint()}
		}),
		Waits: WaitStats{d.histogram(), d.outcomes()},
		MCP:   listOf(d, func() MCPStats { return MCPStats{d.text(), d.Bool(), d.int(), d.Bool(), d.Uint()} }),

		Circuits: listOf(d, func() CircuitStats { return CircuitStats{d.text(), d.Bool(), d.Uint()} }),
		Routes:   listOf(d, func() RouteStats { return RouteStats{d.text(), d.text(), d.text(), d.Uint()} }),

		Approvals: ApprovalStats{d.Bool(), d.int(), d.time()},
		Unknown:   d.Uint(),
		Webhooks:  listOf(d, func() WebhookStats { return WebhookStats{d.text(), d.Uint(), d.Uint(), d.Uint(), d.int(), d.time()} }),
		Cluster:   ClusterStats{d.int(), d.Uint(), d.duration()},
		Prompts:   PromptStats{d.Bool(), d.Uint(), d.Uint(), d.Int()},
	}
}

func (d *decoder) askKind() actor.AskKind {
	return actor.AskKind(d.UintMax(uint64(actor.AskInvoke), "kind of ask"))
}

func (d *decoder) runStats() []RunStats {
	return listOf(d, func() RunStats { return RunStats{d.status(), d.Uint()} })
}

func (d *decoder) outcomes() []OutcomeStats {
	return listOf(d, func() OutcomeStats {
		return OutcomeStats{actor.Reason(d.UintMax(math.MaxUint8, "reason")), d.Uint()}
	})
}

func (d *decoder) histogram() Histogram {
	return Histogram{listOf(d, d.Uint), d.duration()}
}
