// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"io/fs"
	"net/http"
	"syscall"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// backup copies the store into a new folder below the server's folder for backups,
// while the node is serving.
func (s *Server) backup(ctx *fasthttp.RequestCtx) {
	name, p := decodeBody(ctx, ingress.Backup)
	var dir string
	if p == nil && s.config.Backup == nil {
		p = refusalProblem(actor.Refuse(actor.Rejected, "this server cannot copy its store"))
	}
	if p == nil {
		var err error
		if dir, err = s.config.Backup(name); err != nil {
			p = s.backupProblem(ctx, name, err)
		}
	}
	if p != nil {
		p.write(ctx)
		return
	}
	respondJSON(ctx, http.StatusCreated, struct {
		Dir string `json:"dir"`
	}{dir})
}

// backupProblem returns the problem for a backup that failed.
func (s *Server) backupProblem(ctx *fasthttp.RequestCtx, name string, err error) *problem {
	switch {
	case errors.Is(err, fs.ErrExist):
		p := newProblem(http.StatusConflict, "backup_exists", "backup exists", "name: "+name+" is in use in the folder for backups: choose another name")
		p.Field = "name"
		return p
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		s.log.Warn("backup failed", "error", err.Error())
		return newProblem(http.StatusInsufficientStorage, "disk_full", "disk full", "the disk has no room for a backup: free some space, or serve with --backups and a folder on another disk")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		s.log.Warn("backup failed", "error", err.Error())
		return newProblem(http.StatusForbidden, "forbidden_folder", "forbidden folder", "the server cannot make backups in its folder; see the server log, and serve with --backups and another folder")
	}
	return s.errorProblem(ctx, err)
}
