// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
)

// performed is a call that a test performs.
type performed struct {
	id     runs.ToolCallID
	cancel context.CancelFunc
	answer chan actor.Answer
}

// perform begins a call for a run that a device began, and returns once it is open or refused.
func perform(t *testing.T, d *Devices, device string, n byte, attempt uint32, chain ...string) *performed {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &performed{runs.ToolCallID{Run: actor.CallID{0: 1, 15: n}, Step: 1}, cancel, make(chan actor.Answer, 1)}
	op := runtime.Tool{Name: "user.ask", Left: actor.Duration(1e9)}
	op.Context.Call.To = actor.NewID("buyer", "s1")
	op.Context.Call.SetDevice(device)
	for _, agent := range chain {
		if agent != "" {
			op.Context.Call.Chain = append(op.Context.Call.Chain, actor.NewID(agent, "s1"))
		}
	}
	go func() { p.answer <- d.Perform(ctx, actor.EffectID(p.id), attempt, op) }()
	synctest.Wait()
	return p
}

// A call goes to the device that began its run, or else to the one that connected last. It is
// that of one device until that one is gone and the call is performed again.
func TestCallGoesToOneDevice(t *testing.T) { synctest.Test(t, testCallGoesToOneDevice) }

func testCallGoesToOneDevice(t *testing.T) {
	const tenant = actor.DefaultTenant
	d := New(func() actor.Time { return 0 })
	if p := perform(t, d, "phone", 1, 1); (<-p.answer).Refusal.Reason != actor.NoDevice {
		t.Error("a call without a device is not refused at once")
	}
	_, stop, err := d.Connect(tenant, "phone", nil)
	if err != nil {
		t.Fatal(err)
	}
	tablet, _, _ := d.Connect(tenant, "tablet", nil)
	<-tablet // at once
	for n, c := range []struct{ began, want string }{{"phone", "phone"}, {"tablet", "tablet"}, {"watch", "tablet"}, {"", "tablet"}} {
		p := perform(t, d, c.began, byte(n), 1)
		other := map[string]string{"phone": "tablet", "tablet": "phone"}[c.want]
		if got := d.Calls(tenant, c.want); len(got) != 1 || got[0].ID != p.id || got[0].Session != "s1" || got[0].Tool != "user.ask" {
			t.Errorf("began by %q: %s has the calls %+v", c.began, c.want, got)
		}
		if r := d.Check(tenant, other, p.id); len(d.Calls(tenant, other)) != 0 || r == nil || r.Field != runtime.ToolCallField {
			t.Errorf("began by %q: %s may answer: %v", c.began, other, r)
		}
		if r := d.Check(tenant, c.want, p.id); r != nil {
			t.Error(r)
		}
		if len(d.Calls("u-other", c.want)) != 0 {
			t.Error("another user sees the call")
		}
		p.cancel()
		if a := <-p.answer; a.Refusal.Reason != actor.Deadline || len(d.Calls(tenant, c.want)) != 0 {
			t.Errorf("%+v, %v", a, d.Calls(tenant, c.want))
		}
	}
	stop()
	p := perform(t, d, "phone", 9, 2) // after a restart
	if calls := d.Calls(tenant, "tablet"); len(calls) != 0 {
		t.Errorf("the call does not wait for the device that began its run: %v", calls)
	}
	if _, _, err := d.Connect(tenant, "watch", nil); err != nil || len(d.Calls(tenant, "watch")) != 0 {
		t.Errorf("the call goes to a device that has just connected: %v", err)
	}
	<-time.NewTimer(ReconnectTime).C
	synctest.Wait()
	if calls := d.Calls(tenant, "watch"); len(calls) != 1 {
		t.Errorf("the device that began the run is gone: the call goes to %v", calls)
	}
	p.cancel()
	<-p.answer
}

// A call that a restart has asked for again waits for a device.
func TestCallWaitsForDeviceAfterRestart(t *testing.T) {
	synctest.Test(t, testCallWaitsForDeviceAfterRestart)
}

func testCallWaitsForDeviceAfterRestart(t *testing.T) {
	d := New(func() actor.Time { return 0 })
	p := perform(t, d, "phone", 1, 2)
	updates, stop, err := d.Connect(actor.DefaultTenant, "phone", nil)
	if err != nil {
		t.Fatal(err)
	}
	<-updates
	if got := d.Calls(actor.DefaultTenant, "phone"); len(got) != 1 || got[0].ID != p.id {
		t.Errorf("%+v", got)
	}
	stop()
	p.cancel()
	<-p.answer
	if len(d.users) != 0 {
		t.Errorf("left over: %+v", d.users)
	}
}

// After a restart the device that began the run gives its result, also before it has connected
// again. Another one does not while the call is held for it.
func TestResultBeforeReconnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(func() actor.Time { return 0 })
		p := perform(t, d, "phone", 1, 2)
		if r := d.Check(actor.DefaultTenant, "tablet", p.id); r == nil {
			t.Error("another device may answer")
		}
		for range 2 {
			if r := d.Check(actor.DefaultTenant, "phone", p.id); r != nil {
				t.Error(r)
			}
		}
		p.cancel()
		<-p.answer
	})
}

func TestConnectionsAreBounded(t *testing.T) {
	d := New(func() actor.Time { return 0 })
	for range PerUserMax {
		if _, _, err := d.Connect(actor.DefaultTenant, "phone", nil); err != nil {
			t.Fatal(err)
		}
	}
	var r *actor.Refusal
	if _, _, err := d.Connect(actor.DefaultTenant, "phone", nil); !errors.As(err, &r) || r.Reason != actor.Busy {
		t.Errorf("connection beyond the limit: %v", err)
	}
	if _, _, err := d.Connect("u-other", "phone", nil); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// A device that is limited to agents performs only calls in trees of these, whichever agent makes them.
func TestDeviceOfAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(func() actor.Time { return 0 })
		for device, agents := range map[string][]string{"shop": {"front"}, "phone": {"buyer", "other"}} {
			_, stop, err := d.Connect(actor.DefaultTenant, device, agents)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
		}
		for n, c := range []struct{ root, began, want string }{{"", "shop", "phone"}, {"front", "phone", "shop"}, {"front", "shop", "shop"}, {"", "", "phone"}} {
			p := perform(t, d, c.began, byte(n), 1, c.root)
			if got := d.Calls(actor.DefaultTenant, c.want); len(got) != 1 {
				t.Errorf("%+v: %+v", c, got)
			}
			p.cancel()
			<-p.answer
		}
		if p := perform(t, d, "shop", 9, 1, "nobody"); (<-p.answer).Refusal.Reason != actor.NoDevice {
			t.Error("a call in the tree of another agent has a device")
		}
	})
}
