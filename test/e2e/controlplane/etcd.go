package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// StartEtcd starts etcd on its data folder, which survives its end, and waits until
// it answers.
func (c *ControlPlane) StartEtcd(ctx context.Context) error {
	client := fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.peerPort)
	cmd := exec.Command(c.config.Etcd, "--name", "e2e", "--data-dir", c.etcdData(),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e2e="+peer,
		"--quota-backend-bytes", "8589934592", "--log-level", "warn")
	process, err := c.start("etcd", cmd)
	if err != nil {
		return err
	}
	c.etcd = process
	return c.waitReady(ctx, "etcd", process, client+"/health")
}

// Etcd is the process of etcd, the last that was started.
func (c *ControlPlane) Etcd() *Process { return c.etcd }

// StopEtcd ends etcd in good order.
func (c *ControlPlane) StopEtcd() error { return c.etcd.Stop(stopGrace) }

// Snapshot copies the data of the stopped etcd to a new folder.
func (c *ControlPlane) Snapshot(dir string) error {
	if err := os.CopyFS(dir, os.DirFS(c.etcdData())); err != nil {
		return fmt.Errorf("copy etcd data: %w", err)
	}
	return nil
}

// Restore puts the data of a Snapshot in place of the stopped etcd's.
func (c *ControlPlane) Restore(snapshot string) error {
	if err := os.RemoveAll(c.etcdData()); err != nil {
		return fmt.Errorf("remove etcd data: %w", err)
	}
	if err := os.CopyFS(c.etcdData(), os.DirFS(snapshot)); err != nil {
		return fmt.Errorf("restore etcd data: %w", err)
	}
	return os.Chmod(c.etcdData(), 0o700) // etcd refuses a data folder that others can read
}

func (c *ControlPlane) etcdData() string { return filepath.Join(c.config.Dir, "etcd") }
