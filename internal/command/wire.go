// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"math"
	"reflect"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// queries, actions and results list the values that travel in frames. A place in the list is the number of
// its type on the wire, so a change of their order, or of a type, raises CodecVersion.
var (
	queries = newWire([]Query{AgentsQuery{}, OwnerQuery{}, RunQuery{}, RunsQuery{}, WaitingQuery{}, EventsQuery{}, ActorsQuery{}, HealthQuery{}, StatsQuery{},
		SessionsQuery{}, SessionQuery{}, MessagesQuery{}, ContextQuery{}, OpenRunQuery{}, EveryRunQuery{}, ToolsQuery{}, ToolCallQuery{}, ApprovalsQuery{},
		SessionEventsQuery{}, SessionEndQuery{}, DeviceCallsQuery{}, GatewayQuery{}, ExternalQuery{}, PermitQuery{}, ModelsQuery{}, TasksQuery{},
		WorkingQuery{}, MemoryQuery{}, SchedulesQuery{}, SessionStateQuery{}, PromptsQuery{}, StepsQuery{}, UsageQuery{}, MemberQuery{}, DefinitionsQuery{}})
	actions = newWire([]Action{StartChat{}, ReadChat{}, CancelChat{}, Heartbeat{}, MakeBackup{}})
	results = newWire([]Result{Agents{}, Owner{}, Run{}, Runs{}, Waiting{}, Events{}, Actors{}, Health{}, Stats{},
		Sessions{}, Session{}, Messages{}, Context{}, EveryRun{}, Tools{}, ToolCall{}, Approvals{},
		SessionEvents{}, SessionEnd{}, DeviceCalls{}, Gateway{}, External{}, Permit{}, Backup{}, Models{},
		Chat{}, ChatPart{}, Tasks{}, Working{}, Memory{}, Schedules{}, SessionState{}, Prompts{}, Steps{}, Usage{}, MemberState{}, Definitions{}})
)

// names encodes a list of names.
var names = codecOf(reflect.TypeFor[[]string]())

// wire encodes values of the types of a list: the number of the type, and its exported fields in
// their order. So a new field needs no code, and cannot be forgotten.
type wire[T any] struct {
	numbers map[reflect.Type]uint64 // from 1
	types   []reflect.Type
	codecs  []codec
}

// codec appends a value, and reads one into v, which can be set.
type codec struct {
	put func(e *encoder, v reflect.Value)
	get func(d *decoder, v reflect.Value)
}

func newWire[T any](all []T) *wire[T] {
	w := &wire[T]{numbers: map[reflect.Type]uint64{}}
	for i, v := range all {
		t := reflect.TypeOf(v)
		w.numbers[t] = uint64(i + 1)
		w.types, w.codecs = append(w.types, t), append(w.codecs, codecOf(t))
	}
	return w
}

// put appends a value. One of another type gets the number 0, which no type has.
func (w *wire[T]) put(e *encoder, v T) {
	n := w.numbers[reflect.TypeOf(v)]
	e.Uint(n)
	if n > 0 {
		w.codecs[n-1].put(e, reflect.ValueOf(v))
	}
}

// get reads a value. The name says in an error what the list holds.
func (w *wire[T]) get(d *decoder, name string) (v T) {
	n := d.Uint()
	if d.Err() == nil && (n == 0 || n > uint64(len(w.types))) {
		d.Fail("unknown %s %d", name, n)
	}
	if d.Err() != nil {
		return v
	}
	read := reflect.New(w.types[n-1]).Elem()
	w.codecs[n-1].get(d, read)
	return read.Interface().(T)
}

// special has the types that package actor encodes, and the enumerations with their last values.
var special = map[reflect.Type]codec{
	reflect.TypeFor[actor.CallID]():        codecBy((*encoder).CallID, (*decoder).CallID),
	reflect.TypeFor[actor.ID]():            codecBy((*encoder).ID, (*decoder).ID),
	reflect.TypeFor[actor.Hash]():          codecBy((*encoder).Hash, (*decoder).Hash),
	reflect.TypeFor[[]actor.ID]():          codecBy((*encoder).IDs, (*decoder).IDs),
	reflect.TypeFor[[]actor.Part]():        codecBy((*encoder).Parts, (*decoder).Parts),
	reflect.TypeFor[*actor.Refusal]():      codecBy((*encoder).Refusal, (*decoder).Refusal),
	reflect.TypeFor[actor.Usage]():         codecBy((*encoder).Usage, (*decoder).Usage),
	reflect.TypeFor[actor.ChatMessage]():   codecBy(func(e *encoder, m actor.ChatMessage) { e.ChatMessage(&m) }, (*decoder).ChatMessage),
	reflect.TypeFor[runs.Status]():         codecUpTo(runs.Cancelled),
	reflect.TypeFor[runs.ToolStatus]():     codecUpTo(runs.ToolStatusTimeout),
	reflect.TypeFor[runs.ApprovalStatus](): codecUpTo(runs.ApprovalStatusExpired),
	reflect.TypeFor[actor.AgentKind]():     codecUpTo(actor.External),
	reflect.TypeFor[actor.Durability]():    codecUpTo(actor.Volatile),
	reflect.TypeFor[actor.Scope]():         codecUpTo(actor.ScopeNode),
	reflect.TypeFor[actor.AskKind]():       codecUpTo(actor.AskInvoke),
	reflect.TypeFor[BackupFailure]():       codecUpTo(BackupDiskFull),
}

// recordCodec encodes a record with the tool calls that wait for a person. It can be shown; no event
// can be applied to it.
func recordCodec() codec {
	record, calls := fieldsCodec(reflect.TypeFor[runs.Record]()), codecOf(reflect.TypeFor[[]runs.ToolCall]())
	return codec{
		put: func(e *encoder, v reflect.Value) {
			record.put(e, v)
			r := v.Interface().(runs.Record)
			calls.put(e, reflect.ValueOf(r.Approvals()))
		},
		get: func(d *decoder, v reflect.Value) {
			record.get(d, v)
			var waiting []runs.ToolCall
			calls.get(d, reflect.ValueOf(&waiting).Elem())
			v.Set(reflect.ValueOf(v.Interface().(runs.Record).WithApprovals(waiting)))
		},
	}
}

func codecBy[T any](put func(*encoder, T), get func(*decoder) T) codec {
	return codec{
		put: func(e *encoder, v reflect.Value) { put(e, v.Interface().(T)) },
		get: func(d *decoder, v reflect.Value) { v.Set(reflect.ValueOf(get(d))) },
	}
}

// codecUpTo encodes an enumeration whose last value is given.
func codecUpTo[T ~uint8](last T) codec {
	return codec{
		put: func(e *encoder, v reflect.Value) { e.Uint(v.Uint()) },
		get: func(d *decoder, v reflect.Value) { v.SetUint(d.UintMax(uint64(last), v.Type().Name())) },
	}
}

// codecOf returns the codec of a type, or panics at the start of the program if it has none.
func codecOf(t reflect.Type) codec {
	if c, ok := special[t]; ok {
		return c
	}
	if t == reflect.TypeFor[runs.Record]() {
		return recordCodec()
	}
	switch t.Kind() {
	case reflect.String:
		return codec{func(e *encoder, v reflect.Value) { e.String(v.String()) }, func(d *decoder, v reflect.Value) { v.SetString(d.text()) }}
	case reflect.Bool:
		return codec{func(e *encoder, v reflect.Value) { e.Bool(v.Bool()) }, func(d *decoder, v reflect.Value) { v.SetBool(d.Bool()) }}
	case reflect.Int: // a number of things
		return codec{func(e *encoder, v reflect.Value) { e.Uint(uint64(v.Int())) }, func(d *decoder, v reflect.Value) { v.SetInt(int64(d.UintMax(math.MaxInt64, "number"))) }}
	case reflect.Int64: // a time
		return codec{func(e *encoder, v reflect.Value) { e.Int(v.Int()) }, func(d *decoder, v reflect.Value) { v.SetInt(d.Int()) }}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		most := uint64(math.MaxUint64) >> (64 - t.Bits())
		return codec{func(e *encoder, v reflect.Value) { e.Uint(v.Uint()) }, func(d *decoder, v reflect.Value) { v.SetUint(d.UintMax(most, t.Name())) }}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return codec{func(e *encoder, v reflect.Value) { e.Bytes(v.Bytes()) }, func(d *decoder, v reflect.Value) { v.SetBytes(d.Bytes(bytesMax)) }}
		}
		return listCodec(t)
	case reflect.Array:
		one := codecOf(t.Elem())
		return codec{
			func(e *encoder, v reflect.Value) {
				for i := range v.Len() {
					one.put(e, v.Index(i))
				}
			},
			func(d *decoder, v reflect.Value) {
				for i := range v.Len() {
					one.get(d, v.Index(i))
				}
			},
		}
	case reflect.Pointer:
		one := codecOf(t.Elem())
		return codec{
			func(e *encoder, v reflect.Value) {
				if e.Bool(!v.IsNil()); !v.IsNil() {
					one.put(e, v.Elem())
				}
			},
			func(d *decoder, v reflect.Value) {
				if d.Bool() {
					v.Set(reflect.New(t.Elem()))
					one.get(d, v.Elem())
				}
			},
		}
	case reflect.Struct:
		return fieldsCodec(t)
	}
	panic(fmt.Sprintf("command: a value of the type %s cannot be encoded", t))
}

// listCodec reads the elements one by one: the length is untrusted until they have been read.
func listCodec(t reflect.Type) codec {
	one := codecOf(t.Elem())
	return codec{
		put: func(e *encoder, v reflect.Value) {
			e.Uint(uint64(v.Len()))
			for i := range v.Len() {
				one.put(e, v.Index(i))
			}
		},
		get: func(d *decoder, v reflect.Value) {
			n := d.Count(listMax, "elements")
			if n == 0 {
				return
			}
			all := reflect.MakeSlice(t, 0, min(n, 16))
			for range n {
				element := reflect.New(t.Elem()).Elem()
				if one.get(d, element); d.Err() != nil {
					return
				}
				all = reflect.Append(all, element)
			}
			v.Set(all)
		},
	}
}

// fieldsCodec encodes the exported fields of a struct.
func fieldsCodec(t reflect.Type) codec {
	type field struct {
		codec
		index int
	}
	var all []field
	for i := range t.NumField() {
		if t.Field(i).IsExported() {
			all = append(all, field{codecOf(t.Field(i).Type), i})
		}
	}
	return codec{
		put: func(e *encoder, v reflect.Value) {
			for _, f := range all {
				f.put(e, v.Field(f.index))
			}
		},
		get: func(d *decoder, v reflect.Value) {
			for _, f := range all {
				f.get(d, v.Field(f.index))
			}
		},
	}
}
