// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

func TestMoney(t *testing.T) {
	for micros, want := range map[int64]string{0: "0.00", 1: "0.000001", 125: "0.000125", 500_000: "0.50", 2_500_000: "2.50", -1_230_000: "-1.23", 1_234_567_890_000: "1234567.89"} {
		if got := ShowMoney(micros); got != want {
			t.Errorf("%d: got %s, want %s", micros, got, want)
		}
	}
	for _, bad := range []float64{-0.01, 0.0000001, 1e300, math.NaN(), math.Inf(1), 1e9 + 1} {
		if n, err := ParseMoney(bad); err == nil {
			t.Errorf("%v: got %d", bad, n)
		}
	}
	rapid.Check(t, func(t *rapid.T) { // what is shown is read
		micros := rapid.Int64Range(0, MoneyMax).Draw(t, "micros")
		units, err := strconv.ParseFloat(ShowMoney(micros), 64)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseMoney(units); err != nil || got != micros {
			t.Fatalf("%s is read as %d, %v", ShowMoney(micros), got, err)
		}
	})
}
