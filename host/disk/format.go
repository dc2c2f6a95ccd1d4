// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// The file FORMAT is one line with a checksum, such as
//
//	troupe store 1 of node n1, crc32c e7c28392
//
// Stores of early programs have no checksum. They are all of format 1, so a line of
// another format without a checksum is damaged.
const (
	formatFile      = "FORMAT"
	formatSum       = ", crc32c "
	formatBytesMax  = 4096
	unsummedVersion = 1
)

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
	summed, unsummed := content == sumFormat(text), content == text+"\n"
	var name string
	if n, _ := fmt.Sscanf(text, "troupe store %d of node %s", &version, &name); n == 2 && text == unsummedFormat(version, actor.NodeID(name)) {
		node = actor.NodeID(name)
	}
	switch {
	case summed && (node != "" || version > store.FormatVersion):
	case unsummed && node != "" && version == unsummedVersion:
	default:
		return 0, "", fmt.Errorf("file %s: %w: reads %.80q, want %q with its checksum", formatFile, errFormatDamaged, content, unsummedFormat(store.FormatVersion, "NAME"))
	}
	return version, node, nil
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
		return err
	case version > store.FormatVersion:
		return fmt.Errorf("file %s: is of format %d, this program reads format %d: use a newer program; nothing was changed", formatFile, version, store.FormatVersion)
	case d.former && version == 1:
		d.node = node
	case version < store.FormatVersion:
		return fmt.Errorf("file %s: is of format %d, this program writes format %d: type `troupe migrate %s NEW`; nothing was changed", formatFile, version, store.FormatVersion, d.dir)
	case d.node == "" && d.options.ReadOnly:
		d.node = node
	case d.node != node:
		return fmt.Errorf("file %s: belongs to node %s, not %s", formatFile, node, d.node)
	}
	return actor.CheckName(string(node))
}
