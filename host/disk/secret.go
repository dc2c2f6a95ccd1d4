// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The file holds the secret and its checksum. Without the checksum one flipped
// bit would make another secret and silently invalidate all tokens. Files of an
// earlier version have no checksum.
const (
	secretFile          = "SECRET"
	secretBytes         = 32
	secretChecksumBytes = 8
)

func secretChecksum(secret []byte) []byte {
	sum := sha256.Sum256(append([]byte("troupe secret "), secret...))
	return sum[:secretChecksumBytes]
}

// Secret returns 32 secret bytes. The first call generates them and makes them
// durable before it returns. Every later call returns the same bytes. They have
// their own file, so that showing or copying the log does not reveal them.
func (d *Disk) Secret() ([]byte, error) {
	secret, err := d.readFile(secretFile, secretBytes+secretChecksumBytes+1)
	if errors.Is(err, os.ErrNotExist) && !d.options.ReadOnly {
		return d.newSecret()
	}
	if err == nil {
		secret, err = checkSecret(secret)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: file %s: %w", d.dir, secretFile, err)
	}
	return secret, nil
}

func checkSecret(content []byte) ([]byte, error) {
	const remedy = "restore the file from a copy, or remove it, which invalidates the tokens of all open runs"
	switch {
	case len(content) == secretBytes:
		return content, nil
	case len(content) != secretBytes+secretChecksumBytes:
		return nil, fmt.Errorf("has %d bytes, want %d: %s", len(content), secretBytes+secretChecksumBytes, remedy)
	case !bytes.Equal(content[secretBytes:], secretChecksum(content[:secretBytes])):
		return nil, fmt.Errorf("is damaged, its checksum does not match: %s", remedy)
	}
	return content[:secretBytes:secretBytes], nil
}

func (d *Disk) newSecret() ([]byte, error) {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // never fails
	err := d.createPrivate(secretFile + tempSuffix)
	if err == nil {
		err = d.fillFile(secretFile+tempSuffix, append(slices.Clone(secret), secretChecksum(secret)...))
	}
	if err == nil {
		err = d.install(secretFile)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: file %s: %w", d.dir, secretFile, err)
	}
	return secret, nil
}

// createPrivate creates an empty file that only its owner can read, before
// anything is written to it. Pebble's Create would apply the umask instead.
func (d *Disk) createPrivate(name string) error {
	if d.options.fs != vfs.Default {
		return nil // a file system without owners
	}
	if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(d.path(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// fillFile writes to an existing empty file.
func (d *Disk) fillFile(name string, content []byte) error {
	f, err := d.options.fs.OpenReadWrite(d.path(name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(slices.Clone(content)) // a file system under test may overwrite the buffer
	return errors.Join(err, f.Sync(), f.Close())
}
