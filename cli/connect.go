package cli

import (
	"context"
	"io"
	"os"

	"kube-proxy/cli/kubectl"
)

// connectQuery is "kube-proxy connect".
func connectQuery() queryCommand {
	return queryCommand{
		name: "connect", single: true,
		short: "connect stdin and stdout to the admin socket; for kubectl svcproxy",
		about: "Connects standard input and output to the admin socket of the proxy, until either side ends. " +
			"kubectl svcproxy runs it in the proxy's container, with kubectl exec, to query the proxy of any node " +
			"without access to that node. docs/ask.md describes the requests.",
		ask: func(ctx context.Context, q *queries, _ []string) error { return q.carry(ctx, os.Stdin) },
	}
}

// carry connects in and the output to the admin socket, until one side ends.
func (q *queries) carry(ctx context.Context, in io.Reader) error {
	conn, err := q.client.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	out := rawOf(q.out)
	if _, err := io.WriteString(out, kubectl.Greeting); err != nil {
		return err
	}
	go func() {
		io.Copy(conn, in) // until its end or an error
		conn.Close()
	}()
	io.Copy(out, conn) // the same of answers; the client sees that an answer is incomplete
	return nil
}
