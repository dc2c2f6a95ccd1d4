// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ReadFile returns the content of a file that a program keeps in the directory of a
// store, up to the limit in bytes. It follows no link and refuses everything but a
// regular file.
func ReadFile(name string, limit int64) ([]byte, error) {
	f, err := openRegular(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return b, errors.Join(err, f.Close())
}

// WriteFile replaces such a file: after a crash it has the former content or the new one. If the name is that of a
// link, it replaces the link.
func WriteFile(name string, content []byte) error {
	f, err := realFS.Create(name+tempSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = realFS.Rename(name+tempSuffix, name)
	}
	if err != nil {
		return err
	}
	return syncDir(realFS, filepath.Dir(name))
}

// CheckRegular returns an error if a file is not a regular file, or a link to one.
func CheckRegular(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	return wantType(name, info.Mode(), 0)
}

// openRegular opens a regular file. It follows no link, and does not wait for the other
// end of a named pipe.
func openRegular(name string, flag int) (*os.File, error) {
	if err := checkType(name, 0); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = wantType(name, info.Mode(), 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkType returns an error if the file, without following a link, is not of the type
// want: 0 for a regular file, or fs.ModeDir.
func checkType(name string, want fs.FileMode) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	return wantType(name, info.Mode(), want)
}

func wantType(name string, got, want fs.FileMode) error {
	if got.Type() == want {
		return nil
	}
	return &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("is a %s, want a %s", typeName(got), typeName(want))}
}

func typeName(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "regular file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symbolic link"
	case fs.ModeNamedPipe:
		return "named pipe"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}
