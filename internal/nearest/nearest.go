// SPDX-License-Identifier: Apache-2.0

// Package nearest finds the known name that a misspelt name probably means.
package nearest

// Of returns the name of the list with the smallest edit distance to text, or ""
// if none is near.
func Of(text string, names []string) string {
	best, distance := "", 4
	for _, name := range names {
		if d := editDistance(text, name); d < distance && d*2 < len(name) {
			best, distance = name, d
		}
	}
	return best
}

// editDistance returns the number of insertions, deletions, substitutions and exchanges
// of neighbours that turn a into b.
func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
