// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/upstream"
)

func TestPrice(t *testing.T) {
	p := upstream.Price{Known: true, Input: 3_000_000, CachedInput: 300_000, Output: 15_000_000}
	mini := upstream.Price{Known: true, Input: 150_000, CachedInput: 75_000, Output: 600_000}
	known := func(in, cached, out, total int64) upstream.Usage {
		return upstream.Usage{Known: true, Input: in, Cached: cached, Output: out, Total: total}
	}
	for _, c := range []struct {
		name  string
		price upstream.Price
		usage upstream.Usage
		want  int64
	}{
		{"input and output", p, known(1000, 0, 100, 1100), 4500},
		{"cached tokens are a part of the input", p, known(1000, 800, 100, 1100), 600 + 240 + 1500},
		{"more cached than there are", p, known(1000, 5000, 0, 1000), 300},
		{"a fraction is rounded up", mini, known(1, 0, 0, 1), 1},
		{"the sum is rounded, not each part", mini, known(1, 0, 1, 2), 1}, // 0.15 + 0.6
		{"whole", mini, known(20, 0, 5, 25), 6},
		{"reasoning that only the total has", p, known(100, 0, 10, 1110), 300 + 1010*15},
		{"a total alone costs as output", p, known(0, 0, 0, 7), 105},
		{"a total that is too small", p, known(100, 0, 10, 1), 450},
		{"nothing", p, known(0, 0, 0, 0), 0},
		{"negative counts", p, known(-5, -5, -5, -5), 0},
		{"no usage", p, upstream.Usage{Input: 5}, 0},
		{"no price", upstream.Price{Input: 5}, known(1000, 0, 0, 1000), 0},
		{"free", upstream.Price{Known: true}, known(1000, 0, 1000, 2000), 0},
		{"overflow", upstream.Price{Known: true, Input: upstream.PriceMax, Output: upstream.PriceMax}, known(math.MaxInt64, 0, math.MaxInt64, math.MaxInt64), upstream.CostMax},
	} {
		if got := c.price.Cost(c.usage); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
		u := c.price.Priced(c.usage)
		if u.Cost != c.want || u.Priced != (c.price.Known && c.usage.Known) {
			t.Errorf("%s: priced as %+v", c.name, u)
		}
	}
	if got := p.Worst(1000, 100); got != 4500 {
		t.Errorf("worst: got %d", got)
	}
	if got := p.Worst(math.MaxInt64, math.MaxInt64); got != upstream.CostMax {
		t.Errorf("worst of all: got %d", got)
	}
	if got := (upstream.Price{Known: true, Input: 1, CachedInput: 9}).Worst(1_000_000, 0); got != 9 {
		t.Errorf("worst with cached tokens that cost more: got %d", got)
	}
}

// The cost is the exact sum, rounded up once, and no answer within its bounds costs more than Worst.
func TestPriceIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		micros := rapid.Int64Range(0, upstream.PriceMax)
		tokens := rapid.Int64Range(0, 1<<40)
		p := upstream.Price{Known: true, Input: micros.Draw(t, "input"), CachedInput: micros.Draw(t, "cached"), Output: micros.Draw(t, "output")}
		u := upstream.Usage{Known: true, Input: tokens.Draw(t, "in"), Output: tokens.Draw(t, "out")}
		u.Cached, u.Total = rapid.Int64Range(0, u.Input).Draw(t, "hit"), u.Input+u.Output
		sum := new(big.Int)
		for _, one := range [][2]int64{{u.Input - u.Cached, p.Input}, {u.Cached, p.CachedInput}, {u.Output, p.Output}} {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(one[0]), big.NewInt(one[1])))
		}
		sum.Div(sum.Add(sum, big.NewInt(999_999)), big.NewInt(1_000_000))
		want := upstream.CostMax
		if sum.IsInt64() {
			want = min(sum.Int64(), upstream.CostMax)
		}
		got := p.Cost(u)
		if got != want {
			t.Fatalf("cost of %+v at %+v: got %d, want %v", u, p, got, sum)
		}
		if worst := p.Worst(u.Input+rapid.Int64Range(0, 1000).Draw(t, "more"), u.Output); got > worst {
			t.Fatalf("cost %d is above the worst, %d", got, worst)
		}
	})
}

func TestParsePrice(t *testing.T) {
	for _, c := range []struct {
		units float64
		want  int64
		fails string
	}{
		{3, 3_000_000, ""}, {0.15, 150_000, ""}, {0.075, 75_000, ""}, {0, 0, ""}, {0.000001, 1, ""}, {1_000_000, upstream.PriceMax, ""}, {74.999999, 74_999_999, ""},
		{-1, 0, "from 0 to 1000000"}, {math.NaN(), 0, "from 0 to"}, {math.Inf(1), 0, "from 0 to"}, {1e300, 0, "from 0 to"}, {1_000_000.1, 0, "from 0 to"},
		{0.0000001, 0, "6 decimals"}, {0.1234567, 0, "6 decimals"},
	} {
		got, err := upstream.ParsePrice(c.units)
		if got != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%v: got %d, %v, want %d, %q", c.units, got, err, c.want, c.fails)
		}
	}
}

// The usage of servers that others reported as miscounted, and what it costs at 1.25 for a million tokens of prompts, 0.31
// of cached ones and 10 of answers.
func TestUsageOfServersIsPriced(t *testing.T) {
	p := upstream.Price{Known: true, Input: 1_250_000, CachedInput: 310_000, Output: 10_000_000}
	const choice = `"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]`
	usage := func(all ...string) (body string) {
		body = "data: {" + choice + "}\n\n"
		for _, one := range all {
			body += `data: {"choices":[],"usage":` + one + "}\n\n"
		}
		return body + "data: [DONE]\n\n"
	}
	for _, c := range []struct {
		name, body string
		want       upstream.Usage
	}{
		{"cached tokens are also prompt_tokens", usage(`{"prompt_tokens":262960,"completion_tokens":1744,"total_tokens":264704,"prompt_tokens_details":{"text_tokens":262960,"cached_tokens":257955}}`),
			upstream.Usage{Known: true, Input: 262960, Output: 1744, Total: 264704, Cached: 257955, Priced: true, Cost: 103663}}, // 6256.25 + 79966.05 + 17440
		{"cached tokens of DeepSeek", usage(`{"prompt_tokens":100,"completion_tokens":1,"total_tokens":101,"prompt_cache_hit_tokens":60,"prompt_cache_miss_tokens":40}`),
			upstream.Usage{Known: true, Input: 100, Output: 1, Total: 101, Cached: 60, Priced: true, Cost: 79}}, // 50 + 18.6 + 10
		{"reasoning stands in the total only", usage(`{"prompt_tokens":13,"completion_tokens":4,"total_tokens":522}`),
			upstream.Usage{Known: true, Input: 13, Output: 4, Total: 522, Priced: true, Cost: 5107}}, // 16.25 + 5090
		{"no output but reasoning", usage(`{"completion_tokens":0,"total_tokens":81,"prompt_tokens":21,"completion_tokens_details":{"reasoning_tokens":60}}`),
			upstream.Usage{Known: true, Input: 21, Total: 81, Priced: true, Cost: 627}},
		{"reasoning is a part of the output", usage(`{"prompt_tokens":10,"completion_tokens":1290,"total_tokens":1300,"completion_tokens_details":{"reasoning_tokens":1280}}`),
			upstream.Usage{Known: true, Input: 10, Output: 1290, Total: 1300, Priced: true, Cost: 12913}},
		{"usage grows with each piece", usage(`{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}`, `{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}`, `{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13}`),
			upstream.Usage{Known: true, Input: 10, Output: 3, Total: 13, Priced: true, Cost: 43}},
		{"no usage in the stream", usage(), upstream.Usage{}},
		{"usage null", usage("null"), upstream.Usage{}},
		{"all zero", usage(`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`), upstream.Usage{}},
		{"more cached than sent", usage(`{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":900}}`),
			upstream.Usage{Known: true, Input: 10, Total: 10, Cached: 10, Priced: true, Cost: 4}},
		{"details that are none", usage(`{"prompt_tokens":8,"completion_tokens":0,"total_tokens":8,"prompt_tokens_details":"none"}`, `{"prompt_tokens":8,"completion_tokens":0,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":-4}}`),
			upstream.Usage{Known: true, Input: 8, Total: 8, Priced: true, Cost: 10}},
	} {
		h := decodeAll("model", "text/event-stream", []byte(c.body), len(c.body))
		if h.failure != nil {
			t.Fatalf("%s: %v", c.name, h.failure)
		}
		got := p.Priced(h.answer.Usage)
		if got != c.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, got, c.want)
		}
		answer := h.answer
		answer.Usage = got
		if back, err := upstream.DecodeCompletion(answer.Encode()); err != nil || back.Usage != got {
			t.Errorf("%s: the record has %+v, %v", c.name, back.Usage, err)
		}
	}
}
