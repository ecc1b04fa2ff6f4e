// Package deploy tests that the Helm chart in deploy/helm and the manifests in
// deploy/kustomize install the same.
package deploy
