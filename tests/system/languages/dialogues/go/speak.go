// ./speak ADDRESS VOICE FILE PIECE... : the dialogue of test_dialogues.py, whose outcome it prints as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	pb "example.com/speak/gen/voxcpm_grpc/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type call struct {
	pb.VoxCPMService_GenerateClient
}

var client pb.VoxCPMServiceClient

func open(config *pb.GenerateConfig) call {
	stream, err := client.Generate(context.Background())
	must(err)
	stream.Send(&pb.GenerateRequest{Request: &pb.GenerateRequest_Config{Config: config}})
	return call{stream}
}

func (c call) say(pieces ...string) call {
	for _, piece := range pieces {
		c.Send(&pb.GenerateRequest{Request: &pb.GenerateRequest_Text{Text: piece}})
	}
	return c
}

func (c call) until(last func(*pb.AudioChunk) bool) []*pb.AudioChunk {
	for chunks := []*pb.AudioChunk{}; ; {
		chunk, err := c.Recv()
		if err == io.EOF {
			return chunks
		}
		must(err)
		if chunks = append(chunks, chunk); last(chunk) {
			return chunks
		}
	}
}

func (c call) rest() []*pb.AudioChunk {
	must(c.CloseSend())
	return c.until(func(*pb.AudioChunk) bool { return false })
}

func (c call) fails() *status.Status {
	c.CloseSend()
	for {
		if _, err := c.Recv(); err == io.EOF {
			must(fmt.Errorf("the call ended with OK"))
		} else if err != nil {
			return status.Convert(err)
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	address, file, pieces := os.Args[1], os.Args[3], os.Args[4:]
	voice := &pb.Conditioning{Voice: os.Args[2]}
	conn, err := grpc.Dial(address, grpc.WithInsecure())
	must(err)
	client = pb.NewVoxCPMServiceClient(conn)
	outcome := map[string]interface{}{}

	chunks := open(&pb.GenerateConfig{Conditioning: voice}).say(pieces...).rest()
	audio := []byte{}
	for _, chunk := range chunks {
		audio = append(audio, chunk.Audio...)
	}
	must(os.WriteFile(file, audio, 0o600))
	outcome["seed"] = fmt.Sprint(chunks[0].Header.Seed)
	outcome["samples"] = chunks[len(chunks)-1].Summary.TotalSamples

	largest := &pb.TurnConfig{Sampling: &pb.Sampling{Seed: proto.Uint64(math.MaxInt64)}}
	chunks = open(&pb.GenerateConfig{Conditioning: voice, Turn: largest}).rest()
	outcome["largest_seed"] = fmt.Sprint(chunks[0].Header.Seed)

	stream := open(&pb.GenerateConfig{Conditioning: voice}).say(strings.Repeat(strings.Join(pieces, "")+" ", 20))
	stream.until(func(chunk *pb.AudioChunk) bool { return len(chunk.Audio) > 0 })
	interrupt := &pb.Interrupt{Tag: "stop", PlayedSamples: proto.Int64(0)}
	stream.Send(&pb.GenerateRequest{Request: &pb.GenerateRequest_Interrupt{Interrupt: interrupt}})
	chunks = stream.until(func(chunk *pb.AudioChunk) bool { return chunk.Interrupted != nil })
	outcome["tag"] = chunks[len(chunks)-1].Interrupted.Tag
	chunks = stream.say(pieces...).rest()
	outcome["turns"] = chunks[len(chunks)-1].Summary.Turns

	failure := open(&pb.GenerateConfig{RequestId: "dialogue", Conditioning: &pb.Conditioning{Voice: "nobody"}}).fails()
	outcome["code"] = failure.Code()
	for _, detail := range failure.Details() {
		if info, ok := detail.(*errdetails.RequestInfo); ok {
			outcome["request_id"] = info.RequestId
		}
	}
	failure = open(&pb.GenerateConfig{Turn: &pb.TurnConfig{Sampling: &pb.Sampling{CfgValue: proto.Float32(99)}}}).fails()
	for _, detail := range failure.Details() {
		if fault, ok := detail.(*errdetails.BadRequest); ok {
			outcome["field"] = fault.FieldViolations[0].Field
		}
	}
	must(json.NewEncoder(os.Stdout).Encode(outcome))
}
