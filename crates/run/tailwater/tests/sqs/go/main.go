// What people do with SQS, through the AWS SDK for Go 2: `scenarios ENDPOINT SCENARIO...`, with its keys in the environment. A
// scenario that does not hold ends the program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

const attempts = 200

var (
	ctx = context.Background()
	all = []types.QueueAttributeName{types.QueueAttributeNameAll}
)

// must stops everything at an error: what is wrong is in its text.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func ensure(holds bool, what ...any) {
	if !holds {
		panic(fmt.Sprint(what...))
	}
}

func client(endpoint string) *sqs.Client {
	credentials := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{
			AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
		}, nil
	})
	return sqs.New(sqs.Options{
		BaseEndpoint: aws.String(endpoint), Region: "eu-central-1", Credentials: credentials, Retryer: aws.NopRetryer{},
	})
}

type scenario struct{ *sqs.Client }

func (s scenario) create(name string, attributes map[string]string) string {
	return *must(s.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})).QueueUrl
}

func (s scenario) attributes(url string) map[string]string {
	return must(s.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: all})).Attributes
}

func (s scenario) visible(url string) string {
	return s.attributes(url)["ApproximateNumberOfMessages"]
}

func (s scenario) receive(url string, most, waitS int32) []types.Message {
	input := sqs.ReceiveMessageInput{
		QueueUrl: &url, MaxNumberOfMessages: most, WaitTimeSeconds: waitS, AttributeNames: all,
	}
	return must(s.ReceiveMessage(ctx, &input)).Messages
}

func (s scenario) delete(url string, message types.Message) {
	must(s.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: message.ReceiptHandle}))
}

// Several receivers of a FIFO queue: each group stays in order, and what is sent again is one message.
func (s scenario) fifo() {
	url := s.create("go.fifo", map[string]string{
		"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "60",
	})
	sent := map[string][]string{}
	var sequence string
	for number := 0; number < 12; number++ {
		for _, group := range []string{"a", "b", "c", "d"} {
			body := group + strconv.Itoa(number)
			input := sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageGroupId: aws.String(group)}
			first := *must(s.SendMessage(ctx, &input)).SequenceNumber
			ensure(first > sequence, first, " after ", sequence)
			ensure(*must(s.SendMessage(ctx, &input)).SequenceNumber == first, "sent again it is another message")
			sequence = first
			sent[group] = append(sent[group], body)
		}
	}
	var lock sync.Mutex
	seen, count := map[string][]string{}, 0
	together(3, func(int) {
		for {
			lock.Lock()
			done := count == 48
			lock.Unlock()
			if done {
				return
			}
			messages := s.receive(url, 3, 1)
			// Nobody else has messages of these groups before these are deleted.
			lock.Lock()
			for _, message := range messages {
				group := message.Attributes["MessageGroupId"]
				seen[group] = append(seen[group], *message.Body)
				count++
			}
			lock.Unlock()
			for _, message := range messages {
				s.delete(url, message)
			}
		}
	})
	ensure(reflect.DeepEqual(seen, sent), seen)
	// What is behind an invisible message stays hidden, until that is deleted.
	for _, body := range []string{"x0", "x1"} {
		must(s.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String(body), MessageGroupId: aws.String("x")}))
	}
	first := s.receive(url, 1, 0)
	ensure(len(first) == 1 && *first[0].Body == "x0", first)
	ensure(len(s.receive(url, 1, 0)) == 0, "x1 came before x0 was deleted")
	s.delete(url, first[0])
	second := s.receive(url, 1, 0)
	ensure(len(second) == 1 && *second[0].Body == "x1", second)
}

// Fifty clients wait, and each gets one of fifty messages; then there is nothing to be had.
func (s scenario) longPolling() {
	url := s.create("go-polled", map[string]string{"VisibilityTimeout": "3600"})
	var lock sync.Mutex
	var got []int
	together(51, func(number int) {
		if number == 50 {
			for first := 0; first < 50; first += 10 {
				var entries []types.SendMessageBatchRequestEntry
				for at := first; at < first+10; at++ {
					body := aws.String(strconv.Itoa(at))
					entries = append(entries, types.SendMessageBatchRequestEntry{Id: body, MessageBody: body})
				}
				sent := must(s.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries}))
				ensure(len(sent.Successful) == 10, sent.Failed)
			}
			return
		}
		for attempt := 0; attempt < attempts; attempt++ {
			for _, message := range s.receive(url, 1, 20) {
				lock.Lock()
				got = append(got, must(strconv.Atoi(*message.Body)))
				lock.Unlock()
				s.delete(url, message)
				return
			}
		}
	})
	sort.Ints(got)
	ensure(len(got) == 50 && got[0] == 0 && got[49] == 49, got)
	ensure(len(s.receive(url, 10, 1)) == 0, "there are more messages than were sent")
}

// What nobody can handle goes to the dead letters, and comes back from there.
func (s scenario) redrive() {
	dead := s.create("go-letters", nil)
	waiting := s.create("go-waiting", nil) // where nothing comes
	source := s.create("go-source", map[string]string{
		"VisibilityTimeout": "0",
		"RedrivePolicy":     fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"2"}`, s.attributes(dead)["QueueArn"]),
	})
	sources := must(s.ListDeadLetterSourceQueues(ctx, &sqs.ListDeadLetterSourceQueuesInput{QueueUrl: &dead})).QueueUrls
	ensure(reflect.DeepEqual(sources, []string{source}), sources)
	for number := 0; number < 10; number++ {
		must(s.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &source, MessageBody: aws.String(strconv.Itoa(number))}))
	}
	for attempt := 0; attempt < attempts && s.visible(dead) != "10"; attempt++ {
		s.receive(source, 10, 0)
	}
	ensure(s.visible(dead) == "10" && s.visible(source) == "0", "not all are dead letters")
	arn := aws.String(s.attributes(dead)["QueueArn"])
	must(s.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: arn}))
	var task types.ListMessageMoveTasksResultEntry
	for attempt := 0; attempt < attempts; attempt++ {
		task = must(s.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{SourceArn: arn})).Results[0]
		if *task.Status != "RUNNING" {
			break
		}
		s.receive(waiting, 1, 1)
	}
	ensure(*task.Status == "COMPLETED" && task.ApproximateNumberOfMessagesMoved == 10, task)
	ensure(s.visible(source) == "10", "not all came back")
	_, err := s.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: aws.String(*arn + "-none")})
	var none *types.ResourceNotFoundException
	ensure(errors.As(err, &none), err)
}

// together runs so many at the same time, and waits for all.
func together(count int, run func(number int)) {
	var running sync.WaitGroup
	for number := 0; number < count; number++ {
		running.Add(1)
		go func(number int) {
			defer running.Done()
			run(number)
		}(number)
	}
	running.Wait()
}

func main() {
	s := scenario{client(os.Args[1])}
	scenarios := map[string]func(){"fifo": s.fifo, "long_polling": s.longPolling, "redrive": s.redrive}
	for _, name := range os.Args[2:] {
		fmt.Println(name)
		scenarios[name]()
	}
}
