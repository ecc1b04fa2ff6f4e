// Package kube tests Cove on a real Kubernetes: etcd, the control plane, and two nodes with
// containerd and runc on this machine; and its controller for objects of agents.x-k8s.io. "make test-kube" runs it, as root; its files have the
// build tag kube.
package kube
