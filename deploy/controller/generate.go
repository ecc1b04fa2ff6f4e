package main

//go:generate go tool controller-gen object crd:maxDescLen=0 paths=./api/... output:crd:dir=../kustomize/components/agents/crds
