module fluence.example/queues/kueue

go 1.26.0

require (
	sigs.k8s.io/kueue v0.19.2 // built in its own folder, by its own go.mod and go.sum
)
