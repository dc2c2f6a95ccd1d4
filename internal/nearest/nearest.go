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

// editDistance returns the number of insertions, deletions and substitutions that
// turn a into b.
func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
