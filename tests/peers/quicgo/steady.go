package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What a client with a steady rate has measured. Times count from when a request was due, in microseconds.
type steadyReport struct {
	Asked      int            `json:"asked"`
	Errors     map[string]int `json:"errors,omitempty"`
	Requests   percentiles    `json:"requests"`
	Handshakes percentiles    `json:"handshakes"`
}

type percentiles struct {
	Count int   `json:"count"`
	P50   int64 `json:"p50"`
	P99   int64 `json:"p99"`
	Max   int64 `json:"max"`
}

func percentilesOf(times []time.Duration) percentiles {
	if len(times) == 0 {
		return percentiles{}
	}
	slices.Sort(times)
	at := func(share int) int64 { return times[(len(times)-1)*share/100].Microseconds() }
	return percentiles{len(times), at(50), at(99), at(100)}
}

// measurement collects the times of one interval.
type measurement struct {
	mutex      sync.Mutex
	requests   []time.Duration
	handshakes []time.Duration
	errors     map[string]int
	running    sync.WaitGroup
}

func (m *measurement) do(due time.Time, times *[]time.Duration, work func() error) {
	m.running.Go(func() {
		err := work()
		took := time.Since(due)
		m.mutex.Lock()
		defer m.mutex.Unlock()
		if err != nil {
			m.errors[err.Error()]++
			return
		}
		*times = append(*times, took)
	})
}

// A new connection is made for every so many requests.
const handshakeEvery = 10

// steady asks at a rate for as many seconds as each line of input says, and prints what it has measured. A request
// is asked when it is due, whether or not those before it are done. With no connections each is made on its own.
func steady(o *options, trust *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	var clients []*client
	for range o.connections {
		c, err := dial(ctx, o, trust)
		if err != nil {
			return err
		}
		defer c.close()
		clients = append(clients, c)
	}
	path := list(o.paths)[0]
	ask := func(c *client) error {
		answer, err := c.get(ctx, path, "")
		if err == nil && answer.Status != 200 {
			err = fmt.Errorf("status %d", answer.Status)
		}
		return err
	}
	alone := func() error {
		c, err := dial(ctx, o, trust)
		if err != nil {
			return err
		}
		defer c.close()
		return ask(c)
	}
	fmt.Println("connected")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		seconds, err := strconv.ParseFloat(strings.TrimSpace(lines.Text()), 64)
		if err != nil {
			return err
		}
		m := &measurement{errors: map[string]int{}}
		every := time.Duration(float64(time.Second) / o.steady)
		count := int(seconds * o.steady)
		start := time.Now()
		for n := range count {
			due := start.Add(time.Duration(n) * every)
			time.Sleep(time.Until(due))
			c := clients[n%len(clients)]
			m.do(due, &m.requests, func() error { return ask(c) })
			if n%handshakeEvery == 0 {
				m.do(due, &m.handshakes, alone)
			}
		}
		m.running.Wait()
		result := steadyReport{count, m.errors, percentilesOf(m.requests), percentilesOf(m.handshakes)}
		if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
			return err
		}
	}
	return lines.Err()
}
