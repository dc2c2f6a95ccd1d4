// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

func TestSpent(t *testing.T) {
	u := func(n, cost int64) Usage { return Usage{Input: n, Total: n, Priced: n, Cost: cost} }
	var s Spent
	s = s.Add("b", u(1, 10))
	before := s
	s = s.Add("a", u(2, 20)).Add("b", Usage{}).Add("b", u(3, 30)).Add("", Usage{Total: 9})
	want := Spent{{"", 1, 0, Usage{Total: 9}}, {"a", 1, 0, u(2, 20)}, {"b", 3, 1, u(4, 40)}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
	if !reflect.DeepEqual(before, Spent{{"b", 1, 0, u(1, 10)}}) {
		t.Errorf("an earlier value was changed: %+v", before)
	}
	s = nil
	for i := range 40 {
		s = s.Add(fmt.Sprintf("m%02d", i), u(1, 1))
	}
	s = s.Add("m03", u(1, 1)).Add("m39", u(1, 1)).Add(strings.Repeat("x", 1<<20), u(1, 1))
	var sum Spending
	for i := range s {
		sum.Add(&s[i])
	}
	if len(s) != SpentMax || sum.Answers != 43 || sum.Usage != u(43, 43) || s[SpentMax-1].Model != SpentOther || s[SpentMax-1].Answers != 27 {
		t.Errorf("of many models: got %d, %+v, %+v", len(s), sum, s)
	}
}

// What a run spent is the sum of the answers of its events: those of calls are spent by other runs, and a failure has none.
func TestSpentOfRecord(t *testing.T) {
	r := Record{}
	for _, e := range []Event{
		{Type: LLMCallDone, Name: "big", Status: actor.Succeeded, Usage: Usage{Input: 10, Output: 3, Total: 13, Cached: 4, Priced: 13, Cost: 99}},
		{Type: LLMCallDone, Name: "big", Status: actor.Failed, Refusal: actor.Refuse(actor.Unavailable, "x")},
		{Type: LLMCallDone, Name: "other", Status: actor.Succeeded},
		{Type: AgentInvokeDone, Name: "ext", Status: actor.Succeeded, Usage: Usage{Total: 7}},
		{Type: AgentInvokeDone, Name: "ext", Status: actor.Succeeded},
		{Type: AgentChildDone, Status: actor.Succeeded, Usage: Usage{Input: 100, Total: 100, Priced: 100, Cost: 1000}},
	} {
		r.addUsage(&e)
	}
	want := Spent{{"", 1, 0, Usage{Total: 7}}, {"big", 1, 0, Usage{Input: 10, Output: 3, Total: 13, Cached: 4, Priced: 13, Cost: 99}}, {"other", 1, 1, Usage{}}}
	if !reflect.DeepEqual(r.Spent, want) {
		t.Errorf("got  %+v\nwant %+v", r.Spent, want)
	}
	if sum := want[0].Usage.Add(want[1].Usage); r.Usage != sum || r.Tree.Cost != 1099 {
		t.Errorf("usage %+v, want %+v; of the tree %+v", r.Usage, sum, r.Tree)
	}
}

// An event keeps the cost of its answer, also one of 0, and shows none without a price.
func TestUsageOfEventIsRead(t *testing.T) {
	for _, c := range []struct {
		usage Usage
		want  string
	}{
		{Usage{Input: 7, Output: 3, Total: 10}, `"usage":{"input_tokens":7,"output_tokens":3,"total_tokens":10}`},
		{Usage{Input: 7, Output: 3, Total: 10, Cached: 2, Priced: 10, Cost: 48}, `"usage":{"input_tokens":7,"output_tokens":3,"total_tokens":10,"cached_tokens":2,"cost_micros":48}`},
		{Usage{Input: 7, Output: 3, Total: 10, Priced: 10}, `"usage":{"input_tokens":7,"output_tokens":3,"total_tokens":10,"cost_micros":0}`},
		{Usage{Input: 7, Output: 3, Total: 10, Priced: 4, Cost: 5}, `"usage":{"input_tokens":7,"output_tokens":3,"total_tokens":10,"cost_micros":5,"unpriced_tokens":6}`},
	} {
		e := Event{Run: actor.CallID{1}, Seq: 1, Type: LLMCallDone, Step: 1, Name: "m", Status: actor.Succeeded, Usage: c.usage}
		body := Encode(e)
		back, err := Decode(body)
		if err != nil || back.Usage != c.usage || !strings.Contains(string(body), c.want) {
			t.Errorf("%+v: got %+v, %v from %s", c.usage, back.Usage, err, body)
		}
	}
}
