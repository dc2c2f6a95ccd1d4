// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// PageMax is the maximum number of entities of a page.
const PageMax = 200

// Page returns entities in the order of their names, after the one of a name; "" means from the first. More
// is the name to continue after; "" if the page is the last one.
func (x *Index) Page(after string, limit int) (all []Entity, more string) {
	at := 0
	if after != "" {
		at, _ = slices.BinarySearch(x.names, strings.ToLower(after)+"\x01")
	}
	for _, name := range x.names[at:] {
		if len(all) == limit {
			return all, all[len(all)-1].Name
		}
		_, key, _ := strings.Cut(name, "\x00")
		all = append(all, x.entities[key].Entity)
	}
	return all, ""
}

// NameBefore returns the name of the entity of a Key that was created before a time; "" if there is none.
func (x *Index) NameBefore(key string, at actor.Time) string {
	if e := x.entities[key]; e != nil && e.Created < at {
		return e.Name
	}
	return ""
}
