package main

import (
	_ "github.com/cove-sh/cove/client"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/client-go/tools/record"
	_ "sigs.k8s.io/controller-runtime"
)

func main() {}
