// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"slices"
)

// MemoryKV is a KV in memory: a sorted list of sorted leaves. The zero MemoryKV is empty
// and ready to use.
type MemoryKV struct {
	leaves [][]Row // each has 1 to leafMax-1 rows
}

// leafMax is the number of rows at which a leaf is split.
const leafMax = 128

// Get implements KV.
func (m *MemoryKV) Get(key []byte) ([]byte, bool, error) {
	l, i, ok := m.find(key)
	if !ok {
		return nil, false, nil
	}
	return m.leaves[l][i].Value, true, nil
}

// Scan implements KV.
func (m *MemoryKV) Scan(from, to []byte, each func(key, value []byte) bool) error {
	l, i, _ := m.find(from)
	for ; l < len(m.leaves); l, i = l+1, 0 {
		for _, row := range m.leaves[l][i:] {
			if bytes.Compare(row.Key, to) >= 0 || !each(row.Key, row.Value) {
				return nil
			}
		}
	}
	return nil
}

// ScanBack implements KV.
func (m *MemoryKV) ScanBack(from, to []byte, each func(key, value []byte) bool) error {
	l, i, _ := m.find(to) // the first i rows of leaf l have keys below to
	for ; l >= 0; l-- {
		if l < len(m.leaves) {
			for _, row := range slices.Backward(m.leaves[l][:min(i, len(m.leaves[l]))]) {
				if bytes.Compare(row.Key, from) < 0 || !each(row.Key, row.Value) {
					return nil
				}
			}
		}
		i = leafMax
	}
	return nil
}

// Apply implements KV.
func (m *MemoryKV) Apply(rows []Row) error {
	for _, row := range rows {
		switch {
		case row.Delete && row.To != nil:
			m.deleteRange(row.Key, row.To)
		case row.Delete:
			m.delete(row.Key)
		default:
			m.put(row)
		}
	}
	return nil
}

// Clone returns a copy that shares only immutable keys and values.
func (m *MemoryKV) Clone() *MemoryKV {
	c := &MemoryKV{leaves: make([][]Row, len(m.leaves))}
	for i, leaf := range m.leaves {
		c.leaves[i] = slices.Clone(leaf)
	}
	return c
}

// find returns the leaf and the index of the key. If the key is absent, it returns the
// position at which put would insert the key.
func (m *MemoryKV) find(key []byte) (leaf, at int, ok bool) {
	leaf, ok = slices.BinarySearchFunc(m.leaves, key, func(l []Row, key []byte) int { return bytes.Compare(l[0].Key, key) })
	if ok {
		return leaf, 0, true
	}
	if leaf > 0 {
		leaf--
	}
	if leaf == len(m.leaves) {
		return leaf, 0, false
	}
	at, ok = slices.BinarySearchFunc(m.leaves[leaf], key, func(r Row, key []byte) int { return bytes.Compare(r.Key, key) })
	return leaf, at, ok
}

func (m *MemoryKV) put(row Row) {
	l, i, ok := m.find(row.Key)
	switch {
	case ok:
		m.leaves[l][i].Value = row.Value
		return
	case l == len(m.leaves):
		m.leaves = append(m.leaves, append(make([]Row, 0, leafMax), row))
	default:
		m.leaves[l] = slices.Insert(m.leaves[l], i, row)
	}
	if leaf := m.leaves[l]; len(leaf) == leafMax {
		// Most keys are inserted in ascending order, so the front half rarely changes
		// again. It stays in place.
		back := append(make([]Row, 0, leafMax), leaf[leafMax/2:]...)
		m.leaves[l] = slices.Delete(leaf, leafMax/2, leafMax)
		m.leaves = slices.Insert(m.leaves, l+1, back)
	}
}

func (m *MemoryKV) deleteRange(from, to []byte) {
	for {
		l, i, _ := m.find(from)
		if l < len(m.leaves) && i == len(m.leaves[l]) {
			l, i = l+1, 0
		}
		if l >= len(m.leaves) || bytes.Compare(m.leaves[l][i].Key, to) >= 0 {
			return
		}
		end := i
		for end < len(m.leaves[l]) && bytes.Compare(m.leaves[l][end].Key, to) < 0 {
			end++
		}
		if m.leaves[l] = slices.Delete(m.leaves[l], i, end); len(m.leaves[l]) == 0 {
			m.leaves = slices.Delete(m.leaves, l, l+1)
		}
	}
}

func (m *MemoryKV) delete(key []byte) {
	l, i, ok := m.find(key)
	if !ok {
		return
	}
	if m.leaves[l] = slices.Delete(m.leaves[l], i, i+1); len(m.leaves[l]) == 0 {
		m.leaves = slices.Delete(m.leaves, l, l+1)
	}
}
