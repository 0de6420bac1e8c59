// Speaks each line of stdin as it arrives, and writes WAV to stdout:
//
//	./speak HOST:PORT VOICE < text.txt > speech.wav
//
// VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	pb "example.com/speak/gen/voxcpm_grpc/v1"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // with these types linked, Details decodes them
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func check(err error) {
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	for _, detail := range status.Convert(err).Details() {
		fmt.Fprintf(os.Stderr, "%T %v\n", detail, detail)
	}
	os.Exit(1)
}

func send(stream pb.VoxCPMService_GenerateClient, voice string) {
	stream.Send(&pb.GenerateRequest{Request: &pb.GenerateRequest_Config{Config: &pb.GenerateConfig{
		Conditioning: &pb.Conditioning{Voice: voice},
		Turn:         &pb.TurnConfig{Sampling: &pb.Sampling{Seed: proto.Uint64(7)}}, // without it, the server draws one
		Output:       &pb.AudioFormat{Encoding: pb.AudioEncoding_AUDIO_ENCODING_WAV},
	}}})
	input := bufio.NewReader(os.Stdin)
	for line, err := input.ReadString('\n'); line != "" || err == nil; line, err = input.ReadString('\n') {
		stream.Send(&pb.GenerateRequest{Request: &pb.GenerateRequest_Text{Text: line}})
	}
	stream.CloseSend() // the half-close: no more text. The server speaks the rest and ends the stream
}

func main() {
	if len(os.Args) != 3 {
		check(fmt.Errorf("usage: speak HOST:PORT VOICE < text > wav"))
	}
	security := grpc.WithInsecure() // now grpc.WithTransportCredentials(insecure.NewCredentials()); Debian's grpc-go is older
	if ca := os.Getenv("VOXCPM_CLIENT_CA"); ca != "" {
		tls, err := credentials.NewClientTLSFromFile(ca, "")
		check(err)
		security = grpc.WithTransportCredentials(tls)
	}
	conn, err := grpc.Dial(os.Args[1], security, // now grpc.NewClient
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute}), // notices a server that is gone
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))            // 4 MiB are too few for long latents
	check(err)
	ctx := context.Background()
	if key := os.Getenv("VOXCPM_CLIENT_API_KEY"); key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	stream, err := pb.NewVoxCPMServiceClient(conn).Generate(ctx)
	check(err)
	go send(stream, os.Args[2]) // its errors are not checked: Recv has the reason for the end of the call
	for {
		chunk, err := stream.Recv()
		if err == io.EOF {
			return
		}
		check(err)
		os.Stdout.Write(chunk.Audio) // every audio, in order
	}
}
