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

// The file is the secret and a sum of it: one changed bit would make another
// secret, and void all tokens without a word. A file of an earlier version has no sum.
const (
	secretFile          = "SECRET"
	secretBytes         = 32
	secretChecksumBytes = 8
)

func secretChecksum(secret []byte) []byte {
	sum := sha256.Sum256(append([]byte("troupe secret "), secret...))
	return sum[:secretChecksumBytes]
}

// Secret is 32 bytes that nobody else knows: drawn when they are first asked
// for, durable before they are returned, and the same from then on. They are in
// a file of their own, so that what shows or copies the log does not show them.
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
	const instead = "bring the file back from a copy, or remove it, and the tokens of all open runs are void"
	switch {
	case len(content) == secretBytes:
		return content, nil
	case len(content) != secretBytes+secretChecksumBytes:
		return nil, fmt.Errorf("has %d bytes, want %d: %s", len(content), secretBytes+secretChecksumBytes, instead)
	case !bytes.Equal(content[secretBytes:], secretChecksum(content[:secretBytes])):
		return nil, fmt.Errorf("is damaged, its sum is another: %s", instead)
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

// createPrivate makes an empty file that its owner alone may read, before anything is
// in it. Pebble's Create makes one that is as readable as the umask says.
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

// fillFile writes into a file that is there and empty.
func (d *Disk) fillFile(name string, content []byte) error {
	f, err := d.options.fs.OpenReadWrite(d.path(name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(slices.Clone(content)) // a file system under test may write over what it is given
	return errors.Join(err, f.Sync(), f.Close())
}
