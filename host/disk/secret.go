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
)

// The file holds the secret and its checksum. Without the checksum one flipped
// bit would make another secret and silently invalidate all tokens.
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
	if err := d.writeSecret(secret); err != nil {
		return nil, fmt.Errorf("store %s: %w", d.dir, err)
	}
	return secret, nil
}

func (d *Disk) writeSecret(secret []byte) error {
	return d.writeAtomic(secretFile, append(slices.Clone(secret), secretChecksum(secret)...))
}
