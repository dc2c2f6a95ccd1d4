// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/bits"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/internal/invariant"
)

// drawConfig randomizes the fields of a configuration that have a range in their
// struct tag, such as sim:"1..8", "500ms..2s" or "1KiB..1MiB". A field whose value is
// within its range keeps it three times out of four. Otherwise the distribution is
// roughly logarithmic: small values are as likely as large ones.
func drawConfig[T any](c Entropy, config *T) {
	v := reflect.ValueOf(config).Elem()
	for i := range v.NumField() {
		tag, ok := v.Type().Field(i).Tag.Lookup("sim")
		if !ok {
			continue
		}
		field := v.Field(i)
		r := invariant.Must(parseRange(tag, field.Type() == reflect.TypeFor[time.Duration]()))
		value := asInt(field) / r.unit
		if value >= r.min && value <= r.max && c.Int(4) < 3 {
			continue
		}
		span := r.max - r.min
		span >>= c.Int(min(bits.Len64(uint64(span)), r.maxHalvings) + 1)
		setInt(field, (r.min+int64(c.Int(int(span)+1)))*r.unit)
	}
}

func asInt(v reflect.Value) int64 {
	if v.CanUint() {
		return int64(v.Uint())
	}
	return v.Int()
}

func setInt(v reflect.Value, n int64) {
	if v.CanUint() {
		v.SetUint(uint64(n))
	} else {
		v.SetInt(n)
	}
}

// valueRange is the parsed range of a field. The bounds min and max are counted in
// units. The span is halved up to maxHalvings times to favor small values.
type valueRange struct {
	min, max, unit int64
	maxHalvings    int
}

func parseRange(tag string, duration bool) (r valueRange, err error) {
	least, most, ok := strings.Cut(tag, "..")
	if !ok {
		return r, fmt.Errorf("range %q: want min..max", tag)
	}
	r.unit, r.maxHalvings = 1, 64
	parse := parseCount
	if duration {
		r.unit, r.maxHalvings, parse = int64(time.Millisecond), 4, parseMillis
	}
	if r.min, err = parse(least); err == nil {
		r.max, err = parse(most)
	}
	if err == nil && (r.min < 0 || r.max < r.min || r.max-r.min >= 1<<32) {
		err = fmt.Errorf("want 0 <= min <= max and max-min < 2^32")
	}
	if err != nil {
		return r, fmt.Errorf("range %q: %w", tag, err)
	}
	return r, nil
}

func parseMillis(text string) (int64, error) {
	d, err := time.ParseDuration(text)
	return d.Milliseconds(), err
}

func parseCount(text string) (int64, error) {
	times := int64(1)
	for _, unit := range [...]string{"KiB", "MiB"} {
		number, ok := strings.CutSuffix(text, unit)
		if times <<= 10; ok {
			n, err := strconv.ParseInt(number, 10, 32)
			return n * times, err
		}
	}
	return strconv.ParseInt(text, 10, 32)
}

// formatNonDefaults formats the fields of a configuration that differ from its
// defaults.
func formatNonDefaults[T any](config, defaults T) string {
	var all []string
	v, d := reflect.ValueOf(config), reflect.ValueOf(defaults)
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if _, ok := field.Tag.Lookup("sim"); ok && asInt(v.Field(i)) != asInt(d.Field(i)) {
			all = append(all, fmt.Sprintf("%s=%v", field.Name, v.Field(i)))
		}
	}
	return strings.Join(all, " ")
}
