// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/host/disk"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// CheckBackups returns the path of a folder for backups without symbolic links, or
// an error if it is the folder of a store or inside it, or if another user could replace
// the copies in it. The folder need not exist.
func CheckBackups(folder, data string) (string, error) {
	folder, err := resolve(folder)
	if err != nil {
		return "", err
	}
	if data, err = resolve(data); err != nil {
		return "", err
	}
	if folder == data || strings.HasPrefix(folder, data+string(filepath.Separator)) {
		return "", fmt.Errorf("the folder for backups %s is inside the store %s: serve with --backups and another folder: %w", folder, data, fs.ErrPermission)
	}
	return folder, checkOwner(folder)
}

// checkOwner returns an error if a user other than root and the one of this process owns
// a directory or may rename the files in it. A missing directory is created with mode
// 0700.
func checkOwner(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 && stat.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("the folder for backups %s belongs to another user (uid %d), who could replace copies: serve with --backups and another folder: %w", dir, stat.Uid, fs.ErrPermission)
	}
	if mode := info.Mode(); mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 {
		return fmt.Errorf("other users may replace copies in the folder for backups %s (mode %04o): run chmod go-w %s, or serve with --backups and another folder: %w", dir, mode.Perm(), dir, fs.ErrPermission)
	}
	return nil
}

// resolve returns the absolute path of a file without symbolic links. Elements at
// the end that do not exist are kept.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != path {
		if _, linkErr := os.Lstat(path); linkErr == nil {
			return "", fmt.Errorf("%s is a symbolic link to nothing: %w", path, fs.ErrPermission)
		}
		parent, err := resolve(filepath.Dir(path))
		return filepath.Join(parent, filepath.Base(path)), err
	}
	return real, err
}

// Backup copies the store into a new folder with the given name, below the folder
// for backups, while the node is running. It returns the path of the copy. The
// error wraps fs.ErrExist if the name is in use.
func (n *Node) Backup(name string) (dir string, err error) {
	if !n.backup.TryLock() {
		return "", actor.RefuseBusy(actor.ScopeNode, 5*time.Second, "another backup is being made: retry later")
	}
	defer n.backup.Unlock()
	d, ok := n.store.(*disk.Disk)
	if !ok {
		return "", errDatabaseBackup
	}
	folder, err := CheckBackups(n.backups, n.dir)
	if err != nil {
		return "", err
	}
	if err := errors.Join(actor.CheckName(name), os.MkdirAll(folder, 0o700)); err != nil {
		return "", err
	}
	dir = filepath.Join(folder, name)
	if err := os.Mkdir(dir, 0o700); err != nil { // fails for a symbolic link too
		return "", err
	}
	if err := disk.Backup(d, n.log, dir); err != nil {
		return "", errors.Join(err, os.Remove(dir)) // the log has removed its files
	}
	err = n.prompts.CopyTo(context.Background(), filepath.Join(dir, PromptsFolder))
	if err == nil { // after the prompts: it names what was deleted meanwhile
		err = CopyForgets(n.dir, dir)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir)) // which this backup has made
	}
	return dir, nil
}
