// WebRTC by pion: one publishes numbered packets and messages by WHIP, and a crowd plays them by WHEP, whose members come and go at
// random. Each packet and message that is delivered is checked. The last line on standard output is JSON that says what came of it.
//
//	pion crowd BASE ROOM PLAYERS SESSIONS   SESSIONS sessions, up to PLAYERS of them at a time
//	pion publish BASE ROOM                  publishes until standard input ends
//	pion play BASE ROOM                     plays until standard input ends
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"
)

// Octets of a payload: a VP8 descriptor, a first octet of a picture, a number, and what follows from it.
const (
	descriptor = 4
	number     = descriptor + 1
	filled     = number + 8
	length     = 600
)

// The time from picture to picture; each is one packet, and every so many is a key frame.
const (
	interval = 20 * time.Millisecond
	keys     = 50
)

// What came of all.
type result struct {
	Sessions  atomic.Int64
	Connected atomic.Int64
	Packets   atomic.Int64
	Messages  atomic.Int64
	Missing   atomic.Int64
	Wrong     atomic.Int64
	Refused   atomic.Int64
}

func (all *result) tell() {
	line, _ := json.Marshal(map[string]int64{
		"sessions": all.Sessions.Load(), "connected": all.Connected.Load(), "packets": all.Packets.Load(),
		"messages": all.Messages.Load(), "missing": all.Missing.Load(), "wrong": all.Wrong.Load(), "refused": all.Refused.Load(),
	})
	fmt.Println(string(line))
}

func (all *result) wrong(format string, values ...any) {
	all.Wrong.Add(1)
	fmt.Fprintf(os.Stderr, format+"\n", values...)
}

// A payload of that number.
func payload(count uint64) []byte {
	out := make([]byte, length)
	copy(out, []byte{0x90, 0x80, 0x80 | byte(count>>8&0x7f), byte(count)})
	if count%keys != 0 {
		out[descriptor] = 1
	}
	binary.BigEndian.PutUint64(out[number:], count)
	for index := filled; index < length; index++ {
		out[index] = byte(count*31 + uint64(index)*7)
	}
	return out
}

// Asks for a session, and gives its URL.
func ask(connection *webrtc.PeerConnection, base, path string) (string, int, error) {
	offer, err := connection.CreateOffer(nil)
	if err != nil {
		return "", 0, err
	}
	gathered := webrtc.GatheringCompletePromise(connection)
	if err := connection.SetLocalDescription(offer); err != nil {
		return "", 0, err
	}
	<-gathered
	answer, err := http.Post(base+path, "application/sdp", strings.NewReader(connection.LocalDescription().SDP))
	if err != nil {
		return "", 0, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusCreated {
		return "", answer.StatusCode, fmt.Errorf("%d %s", answer.StatusCode, body)
	}
	description := webrtc.SessionDescription{Type: webrtc.SDPTypeAnswer, SDP: string(body)}
	return base + answer.Header.Get("Location"), answer.StatusCode, connection.SetRemoteDescription(description)
}

func end(connection *webrtc.PeerConnection, url string) {
	if request, err := http.NewRequest(http.MethodDelete, url, nil); err == nil && url != "" {
		if answer, err := http.DefaultClient.Do(request); err == nil {
			answer.Body.Close()
		}
	}
	connection.Close()
}

// Publishes until `stop` is closed.
func publish(base, room string, stop <-chan struct{}) error {
	connection, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return err
	}
	codec := webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeVP8, ClockRate: 90000}
	track, err := webrtc.NewTrackLocalStaticRTP(codec, "video", "pion")
	if err != nil {
		return err
	}
	init := webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionSendonly}
	if _, err := connection.AddTransceiverFromTrack(track, init); err != nil {
		return err
	}
	channel, err := connection.CreateDataChannel("numbers", nil)
	if err != nil {
		return err
	}
	connected := make(chan struct{})
	channel.OnOpen(func() { close(connected) })
	url, _, err := ask(connection, base, "/whip/"+room)
	if err != nil {
		return err
	}
	select {
	case <-connected:
	case <-time.After(20 * time.Second):
		return fmt.Errorf("the publisher was not connected")
	}
	fmt.Println(`{"publishing": true}`)
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for count := uint64(0); ; count++ {
			select {
			case <-stop:
				end(connection, url)
				return
			case <-ticker.C:
			}
			header := rtp.Header{Version: 2, Marker: true, SequenceNumber: uint16(count + 65000), Timestamp: uint32(count * 1800)}
			track.WriteRTP(&rtp.Packet{Header: header, Payload: payload(count)})
			if count%10 == 0 {
				channel.SendText(strconv.FormatUint(count/10, 10))
			}
		}
	}()
	return nil
}

// Checks what comes on a track.
func check(track *webrtc.TrackRemote, all *result) {
	first, last := uint64(0), uint64(0)
	var start, came uint64
	seen := map[uint64]bool{}
	for {
		packet, _, err := track.ReadRTP()
		if err != nil {
			if came > 0 {
				all.Missing.Add(int64(last - first + 1 - came))
			}
			return
		}
		if len(packet.Payload) == 0 {
			continue
		}
		if len(packet.Payload) != length {
			all.wrong("a payload of %d octets", len(packet.Payload))
			continue
		}
		count := binary.BigEndian.Uint64(packet.Payload[number:])
		if !bytes.Equal(packet.Payload, payload(count)) {
			all.wrong("packet %d has another payload", count)
		}
		if came == 0 {
			first, last, start = count, count, uint64(packet.SequenceNumber)
		}
		if uint16(count-first) != packet.SequenceNumber-uint16(start) {
			all.wrong("packet %d has number %d", count, packet.SequenceNumber)
		}
		if seen[count] {
			all.wrong("packet %d came twice", count)
			continue
		}
		seen[count] = true
		came++
		first, last = min(first, count), max(last, count)
		if first == count {
			start = uint64(packet.SequenceNumber)
		}
		all.Packets.Add(1)
	}
}

// Plays for that long, or until `stop` is closed.
func play(base, room string, stay time.Duration, stop <-chan struct{}, all *result) {
	connection, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		all.wrong("%v", err)
		return
	}
	init := webrtc.RTPTransceiverInit{Direction: webrtc.RTPTransceiverDirectionRecvonly}
	if _, err := connection.AddTransceiverFromKind(webrtc.RTPCodecTypeVideo, init); err != nil {
		all.wrong("%v", err)
		return
	}
	checked := make(chan struct{})
	hasTrack := atomic.Bool{}
	connection.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		hasTrack.Store(true)
		check(track, all)
		close(checked)
	})
	channel, err := connection.CreateDataChannel("numbers", nil)
	if err != nil {
		all.wrong("%v", err)
		return
	}
	next := int64(-1)
	channel.OnMessage(func(message webrtc.DataChannelMessage) {
		count, err := strconv.ParseInt(string(message.Data), 10, 64)
		if err != nil || next >= 0 && count != next {
			all.wrong("message %q, not %d", message.Data, next)
		}
		next = count + 1
		all.Messages.Add(1)
	})
	connected := make(chan struct{})
	var once sync.Once
	connection.OnConnectionStateChange(func(state webrtc.PeerConnectionState) {
		if state == webrtc.PeerConnectionStateConnected {
			once.Do(func() { close(connected) })
		}
	})
	all.Sessions.Add(1)
	url, status, err := ask(connection, base, "/whep/"+room)
	if err != nil {
		if status == http.StatusServiceUnavailable {
			all.Refused.Add(1)
		} else {
			all.wrong("%v", err)
		}
		connection.Close()
		return
	}
	defer func() {
		end(connection, url)
		if hasTrack.Load() {
			<-checked
		}
	}()
	select {
	case <-connected:
		all.Connected.Add(1)
	case <-time.After(20 * time.Second):
		all.wrong("a player was not connected")
		return
	}
	select {
	case <-stop:
	case <-time.After(stay):
	}
}

func crowd(base, room string, players, sessions int, stop chan struct{}, all *result) error {
	if err := publish(base, room, stop); err != nil {
		return err
	}
	places := make(chan struct{}, players)
	var waiting sync.WaitGroup
	for range sessions {
		places <- struct{}{}
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			play(base, room, 200*time.Millisecond+rand.N(4*time.Second), nil, all)
			<-places
		}()
		time.Sleep(rand.N(40 * time.Millisecond))
	}
	waiting.Wait()
	return nil
}

func main() {
	all, stop := &result{}, make(chan struct{})
	words := os.Args[1:]
	if len(words) < 3 {
		fmt.Fprintln(os.Stderr, "pion crowd|publish|play BASE ROOM [PLAYERS SESSIONS]")
		os.Exit(2)
	}
	var err error
	switch base, room := words[1], words[2]; words[0] {
	case "crowd":
		players, _ := strconv.Atoi(words[3])
		sessions, _ := strconv.Atoi(words[4])
		err = crowd(base, room, players, sessions, stop, all)
	case "publish":
		if err = publish(base, room, stop); err == nil {
			io.Copy(io.Discard, os.Stdin)
		}
	default:
		go func() {
			io.Copy(io.Discard, os.Stdin)
			close(stop)
		}()
		play(base, room, time.Hour, stop, all)
	}
	all.tell()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
