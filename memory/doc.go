// SPDX-License-Identifier: Apache-2.0

// Package memory defines what agents remember: entities with facts and relations.
//
// A scope is the state of one actor: one writer decides about each change, and its journal is the only
// place that holds what is remembered. Apply computes a change from that state. An Index is derived
// from the state, can be built again at any time, and follows it change by change.
//
//	Change ─Apply▶ updates of the state, answer
//	state  ─NewIndex▶ Index ─Search, Traverse, Page▶ what a reader gets
//
// Nothing is remembered that was not stated by a Change. A fact is never edited: a Create supersedes it,
// and it stays readable with its time of validity. A forgotten entity leaves a tombstone without its name
// and its content.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
//
// # Files
//
//	change.go    changes and their effect on the state
//	entity.go    entities, facts, relations and tombstones, and their encoding
//	index.go     the index of a scope
//	page.go      entities in the order of their names
//	scope.go     scopes and their actors
//	search.go    ranked search, and facts that are nearly the same
//	traverse.go  entities that can be reached by relations
//	view.go      what clients and models get, in JSON
//	words.go     the words of a text
package memory
