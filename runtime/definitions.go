// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"maps"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// definitions holds the agents of a cell by version. Actors refer to their agent by
// name, and open runs refer to the definition with which they began by hash. Both look
// it up when they use it next. A change therefore visits no actor.
type definitions struct {
	byName    map[string]*definition
	byHash    map[actor.Hash]*definition
	version   uint64          // number of changes
	journaled map[string]bool // names of agents with a journaled former definition

	// Each message looks its agent up several times. These are the last ones that were found in byName and byHash.
	recentByName [recentDefinitions]*definition
	recentByHash [recentDefinitions]*definition
}

// recentDefinitions is a power of two.
const recentDefinitions = 16

// definition is one definition of an agent. It is retained while the last change lists
// it or an open run in memory began with it.
type definition struct {
	actor.Definition
	hash     actor.Hash // by which it is found
	known    bool       // false if only runs refer to it, and Definition is empty
	listedIn uint64     // last version that lists it
	runs     int        // number of open runs in memory that began with it
}

func newDefinitions() definitions {
	return definitions{byName: map[string]*definition{}, byHash: map[actor.Hash]*definition{}, journaled: map[string]bool{}}
}

// replace sets the current definitions. The parameter former lists older ones that runs
// may still need.
func (d *definitions) replace(current, former []actor.Definition) {
	d.version++
	clear(d.journaled)
	for i := range former {
		if journaled(&former[i]) {
			d.journaled[former[i].Name] = true
		}
		d.list(&former[i])
	}
	clear(d.byName)
	for i := range current {
		d.byName[current[i].Name] = d.list(&current[i])
	}
	clear(d.recentByName[:])
	clear(d.recentByHash[:])
	maps.DeleteFunc(d.byHash, func(_ actor.Hash, def *definition) bool { return d.unused(def) })
}

// list adds a definition to the version. It replaces a former one of the same hash, which
// was compiled with other tools. It copies the definition, because a pointer would retain
// the whole list of every version from which one definition is in use.
func (d *definitions) list(def *actor.Definition) *definition {
	listed := d.entry(def.Hash)
	listed.Definition, listed.known, listed.listedIn = *def, true, d.version
	return listed
}

func (d *definitions) entry(hash actor.Hash) *definition {
	def := d.find(hash)
	if def == nil {
		def = &definition{hash: hash}
		d.byHash[hash] = def
	}
	return def
}

// find returns what is known of the definition of that hash, or nil.
func (d *definitions) find(hash actor.Hash) *definition {
	recent := &d.recentByHash[hash[0]%recentDefinitions]
	if *recent == nil || (*recent).hash != hash {
		def := d.byHash[hash]
		if def == nil {
			return nil
		}
		*recent = def
	}
	return *recent
}

func (d *definitions) unused(def *definition) bool { return def.runs == 0 && def.listedIn < d.version }

// current returns the current definition of an agent, or nil.
func (d *definitions) current(agent string) *actor.Definition {
	slot := uint(len(agent))
	if agent != "" {
		slot += uint(agent[0]) + 31*uint(agent[len(agent)-1])
	}
	recent := &d.recentByName[slot%recentDefinitions]
	if *recent == nil || (*recent).Name != agent {
		def := d.byName[agent]
		if def == nil {
			return nil
		}
		*recent = def
	}
	return &(*recent).Definition
}

// of returns the definition with which the run began. If this binary no longer has that
// definition, it returns the current one of the agent. A replay with the current
// definition MUST make the recorded asks. Otherwise the run is parked.
func (d *definitions) of(run *store.Run) *actor.Definition {
	if def := d.find(run.Definition); def != nil && def.known {
		return &def.Definition
	}
	return d.current(run.Call.To.Agent)
}

// retain counts an open run of the definition.
func (d *definitions) retain(hash actor.Hash) { d.entry(hash).runs++ }

// release ends the count of a run, and drops the definition with its last reference.
func (d *definitions) release(hash actor.Hash) {
	def := d.find(hash)
	if def.runs--; d.unused(def) {
		delete(d.byHash, hash)
		d.recentByHash[hash[0]%recentDefinitions] = nil
	}
}

// inUse reports whether an open run in memory began with the definition.
func (d *definitions) inUse(hash actor.Hash) bool {
	def := d.find(hash)
	return def != nil && def.runs > 0
}
