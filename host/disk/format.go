// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// The file FORMAT is one line with a checksum, such as
//
//	troupe store 3 of node n1, crc32c 85212bf2
const (
	formatFile     = "FORMAT"
	formatSum      = ", crc32c "
	formatBytesMax = 128 // of the longest name of a node, and of the line of a later format
)

// formatPattern matches a line of any format, whether or not its checksum is right. Nothing
// else is shown in an error: FORMAT may be a file of another program.
var formatPattern = regexp.MustCompile(`^troupe store [0-9]{1,9} of node [A-Za-z0-9._-]{1,64}(` + formatSum + `[0-9a-f]{8})?\n$`)

// errFormatDamaged is the error of a FORMAT that no program has written.
var errFormatDamaged = errors.New("is damaged")

// formatLine returns the content of FORMAT.
func formatLine(version int, node actor.NodeID) string {
	return sumFormat(unsummedFormat(version, node))
}

func unsummedFormat(version int, node actor.NodeID) string {
	return fmt.Sprintf("troupe store %d of node %s", version, node)
}

func sumFormat(text string) string {
	return fmt.Sprintf("%s%s%08x\n", text, formatSum, crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

// parseFormat returns the version and the node in the content of FORMAT. The node is
// empty if a later version has changed the wording.
func parseFormat(content string) (version int, node actor.NodeID, err error) {
	text, _, _ := strings.Cut(content, formatSum)
	text = strings.TrimSuffix(text, "\n")
	var name string
	if n, _ := fmt.Sscanf(text, "troupe store %d of node %s", &version, &name); n == 2 && text == unsummedFormat(version, actor.NodeID(name)) {
		node = actor.NodeID(name)
	}
	if content == sumFormat(text) && (node != "" || version > store.FormatVersion) {
		return version, node, nil
	}
	found := "is no line such as"
	if formatPattern.MatchString(content) {
		found = fmt.Sprintf("reads %q, want", content)
	}
	return 0, "", fmt.Errorf("file %s: %w: %s %q with its checksum", formatFile, errFormatDamaged, found, unsummedFormat(store.FormatVersion, "NAME"))
}

// checkFormatFile checks that this program can read the store and that the store
// belongs to the node.
func (d *Disk) checkFormatFile() error {
	b, err := d.readFile(formatFile, formatBytesMax)
	if err != nil {
		return err
	}
	version, node, err := parseFormat(string(b))
	switch {
	case err != nil:
		return &DamageError{err}
	case version > store.FormatVersion:
		return fmt.Errorf("file %s: is of format %d, this program reads format %d: use a newer program; nothing was changed", formatFile, version, store.FormatVersion)
	case version < store.FormatVersion:
		return fmt.Errorf("file %s: is of format %d, this program reads format %d: use the program that wrote it; nothing was changed", formatFile, version, store.FormatVersion)
	case d.node == "" && d.options.ReadOnly:
		d.node = node
	case d.node != node:
		return fmt.Errorf("file %s: belongs to node %s, not %s", formatFile, node, d.node)
	}
	return actor.CheckName(string(node))
}
