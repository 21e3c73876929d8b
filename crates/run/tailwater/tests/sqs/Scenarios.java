import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

import software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.BatchEntryIdsNotDistinctException;
import software.amazon.awssdk.services.sqs.model.BatchResultErrorEntry;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.ReceiveMessageRequest;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;
import software.amazon.awssdk.services.sqs.model.SqsException;

/**
 * What people do with SQS, through the AWS SDK for Java 2: {@code java Scenarios ENDPOINT SCENARIO...}, with its keys in the
 * environment. The SDK verifies the MD5 of every message. A scenario that does not hold throws.
 */
public final class Scenarios {
    private static final int ATTEMPTS = 200;
    private static SqsClient sqs;

    private interface Run {
        void run(int number) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        sqs = SqsClient.builder()
                .endpointOverride(URI.create(args[0]))
                .region(Region.EU_CENTRAL_1)
                .credentialsProvider(EnvironmentVariableCredentialsProvider.create())
                .httpClient(UrlConnectionHttpClient.create())
                .build();
        Map<String, Run> scenarios = Map.of(
                "work_queue", number -> workQueue(), "fifo", number -> fifo(), "batches", number -> batches());
        for (int at = 1; at < args.length; at++) {
            System.out.println(args[at]);
            scenarios.get(args[at]).run(at);
        }
    }

    /** Workers that fail now and then: every job is done, and the one that always fails is a dead letter. */
    private static void workQueue() throws Exception {
        String dead = create("java-dead", Map.of());
        String policy = "{\"deadLetterTargetArn\":\"" + attribute(dead, QueueAttributeName.QUEUE_ARN) + "\",\"maxReceiveCount\":3}";
        // Nothing lapses because this machine is busy.
        String jobs = create("java-jobs",
                Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "60", QueueAttributeName.REDRIVE_POLICY, policy));
        String text = "grüße <&>\r\n";
        for (int number = 0; number < 50; number++) {
            int job = number;
            MessageAttributeValue bytes = MessageAttributeValue.builder()
                    .dataType("Binary").binaryValue(SdkBytes.fromByteArray(new byte[] {(byte) job, 0, -1})).build();
            MessageAttributeValue string = MessageAttributeValue.builder().dataType("String").stringValue(text).build();
            sqs.sendMessage(send -> send.queueUrl(jobs).messageBody("job " + job)
                    .messageAttributes(Map.of("bytes", bytes, "text", string)));
        }
        Set<String> done = ConcurrentHashMap.newKeySet();
        together(4, worker -> {
            for (int turn = worker; done.size() < 49; turn++) {
                for (Message message : receive(jobs, 2, 1)) {
                    Map<String, MessageAttributeValue> known = message.messageAttributes();
                    byte[] bytes = known.get("bytes").binaryValue().asByteArray();
                    ensure(message.body().equals("job " + bytes[0]) && bytes[2] == -1, message);
                    ensure(known.get("text").stringValue().equals(text), message);
                    boolean first = attribute(message, MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT).equals("1");
                    boolean poison = message.body().equals("job 13"); // whoever has it dies with it
                    if (poison || (first && turn % 3 == 0)) {
                        sqs.changeMessageVisibility(change -> change.queueUrl(jobs)
                                .receiptHandle(message.receiptHandle()).visibilityTimeout(poison ? 1 : 0));
                        continue;
                    }
                    delete(jobs, message);
                    done.add(message.body());
                }
            }
        });
        sqs.setQueueAttributes(set -> set.queueUrl(jobs).attributes(Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "0")));
        List<Message> letters = List.of();
        for (int attempt = 0; letters.isEmpty() && attempt < ATTEMPTS; attempt++) {
            receive(jobs, 10, 1);
            letters = receive(dead, 10, 0);
        }
        ensure(letters.size() == 1 && letters.get(0).body().equals("job 13"), letters);
        ensure(attribute(letters.get(0), MessageSystemAttributeName.DEAD_LETTER_QUEUE_SOURCE_ARN)
                .equals(attribute(jobs, QueueAttributeName.QUEUE_ARN)), letters);
        ensure(attribute(jobs, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES).equals("0"), "jobs are left");
    }

    /** Several receivers of a FIFO queue: each group stays in order, and what is sent again is one message. */
    private static void fifo() throws Exception {
        String queue = create("java.fifo",
                Map.of(QueueAttributeName.FIFO_QUEUE, "true", QueueAttributeName.VISIBILITY_TIMEOUT, "60"));
        Map<String, List<String>> sent = new TreeMap<>();
        for (int number = 0; number < 10; number++) {
            for (String group : List.of("a", "b", "c", "d")) {
                String body = group + number;
                SendMessageResponse first = send(queue, body, group);
                SendMessageResponse again = send(queue, body, group);
                ensure(first.messageId().equals(again.messageId()), "sent again it is another message");
                ensure(first.sequenceNumber().equals(again.sequenceNumber()), "sent again it has another place");
                sent.computeIfAbsent(group, none -> new ArrayList<>()).add(body);
            }
        }
        Map<String, List<String>> seen = new TreeMap<>();
        together(3, receiver -> {
            while (true) {
                synchronized (seen) {
                    if (seen.values().stream().mapToInt(List::size).sum() == 40) {
                        return;
                    }
                }
                List<Message> messages = receive(queue, 3, 1);
                // Nobody else has messages of these groups before these are deleted.
                synchronized (seen) {
                    for (Message message : messages) {
                        String group = attribute(message, MessageSystemAttributeName.MESSAGE_GROUP_ID);
                        seen.computeIfAbsent(group, none -> new ArrayList<>()).add(message.body());
                    }
                }
                messages.forEach(message -> delete(queue, message));
            }
        });
        ensure(seen.equals(sent), seen);
        try {
            sqs.sendMessage(send -> send.queueUrl(queue).messageBody("m").messageDeduplicationId("1"));
            throw new AssertionError("a message without a group was taken");
        } catch (SqsException refused) {
            ensure(refused.awsErrorDetails().errorCode().equals("MissingParameter"), refused);
        }
    }

    private static SendMessageResponse send(String queue, String body, String group) {
        return sqs.sendMessage(send -> send.queueUrl(queue).messageBody(body).messageGroupId(group).messageDeduplicationId(body));
    }

    /** Entries that are bad fail by themselves, and a batch that is none is refused by an exception of its own. */
    @SuppressWarnings("unchecked") // the SDK takes its entries as generic varargs
    private static void batches() {
        String queue = create("java-batches", Map.of(QueueAttributeName.MAXIMUM_MESSAGE_SIZE, "1024"));
        List<SendMessageBatchRequestEntry> entries = List.of(
                entry("good", "good", 0), entry("long", "x".repeat(1025), 0), entry("late", "late", 901));
        var sent = sqs.sendMessageBatch(batch -> batch.queueUrl(queue).entries(entries));
        ensure(sent.successful().size() == 1 && sent.successful().get(0).id().equals("good"), sent);
        Map<String, String> failed = new TreeMap<>();
        for (BatchResultErrorEntry one : sent.failed()) {
            failed.put(one.id(), one.code() + " " + one.senderFault());
        }
        String invalid = "InvalidParameterValue true";
        ensure(failed.equals(Map.of("long", invalid, "late", invalid)), failed);
        String receipt = receive(queue, 10, 0).get(0).receiptHandle();
        var changed = sqs.changeMessageVisibilityBatch(batch -> batch.queueUrl(queue).entries(
                one -> one.id("a").receiptHandle(receipt).visibilityTimeout(43_201),
                one -> one.id("b").receiptHandle(receipt).visibilityTimeout(60)));
        ensure(changed.successful().size() == 1 && changed.failed().get(0).code().equals("InvalidParameterValue"), changed);
        var deleted = sqs.deleteMessageBatch(batch -> batch.queueUrl(queue).entries(
                one -> one.id("a").receiptHandle(receipt), one -> one.id("b").receiptHandle("none")));
        ensure(deleted.successful().get(0).id().equals("a"), deleted);
        ensure(deleted.failed().get(0).code().equals("ReceiptHandleIsInvalid"), deleted);
        try {
            sqs.sendMessageBatch(batch -> batch.queueUrl(queue).entries(entry("a", "1", 0), entry("a", "2", 0)));
            throw new AssertionError("two entries have the same id");
        } catch (BatchEntryIdsNotDistinctException refused) {
            ensure(refused.statusCode() == 400, refused);
        }
        try {
            sqs.getQueueUrl(find -> find.queueName("java-none"));
            throw new AssertionError("there is no such queue");
        } catch (QueueDoesNotExistException refused) {
            ensure(refused.awsErrorDetails().errorCode().equals("QueueDoesNotExist")
                    || refused.awsErrorDetails().errorCode().equals("AWS.SimpleQueueService.NonExistentQueue"), refused);
        }
    }

    private static SendMessageBatchRequestEntry entry(String id, String body, int delayS) {
        return SendMessageBatchRequestEntry.builder().id(id).messageBody(body).delaySeconds(delayS).build();
    }

    private static String create(String name, Map<QueueAttributeName, String> attributes) {
        return sqs.createQueue(create -> create.queueName(name).attributes(attributes)).queueUrl();
    }

    private static String attribute(String queue, QueueAttributeName name) {
        return sqs.getQueueAttributes(get -> get.queueUrl(queue).attributeNames(name)).attributes().get(name);
    }

    private static String attribute(Message message, MessageSystemAttributeName name) {
        return message.attributes().get(name);
    }

    private static List<Message> receive(String queue, int most, int waitS) {
        return sqs.receiveMessage(ReceiveMessageRequest.builder().queueUrl(queue).maxNumberOfMessages(most).waitTimeSeconds(waitS)
                .messageAttributeNames("All").messageSystemAttributeNames(MessageSystemAttributeName.ALL).build()).messages();
    }

    private static void delete(String queue, Message message) {
        sqs.deleteMessage(delete -> delete.queueUrl(queue).receiptHandle(message.receiptHandle()));
    }

    /** Runs so many at the same time, and waits for all. */
    private static void together(int count, Run run) throws Exception {
        var threads = Executors.newFixedThreadPool(count);
        List<Future<?>> running = new ArrayList<>();
        IntStream.range(0, count).forEach(number -> running.add(threads.submit(() -> {
            run.run(number);
            return null;
        })));
        for (Future<?> one : running) {
            one.get();
        }
        threads.shutdown();
    }

    private static void ensure(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(what.toString());
        }
    }
}
