// What people do with SQS, through the AWS SDK for JavaScript 3: `node scenarios.mjs ENDPOINT SCENARIO...`, with its keys in the
// environment. The SDK verifies the MD5 of every message. A scenario that does not hold throws.

import assert from "node:assert/strict";

import {
  BatchRequestTooLong,
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  EmptyBatchRequest,
  GetQueueAttributesCommand,
  InvalidBatchEntryId,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
  TooManyEntriesInBatchRequest,
} from "@aws-sdk/client-sqs";

const [endpoint, ...names] = process.argv.slice(2);
const ATTEMPTS = 200;
const sqs = new SQSClient({
  endpoint,
  region: "eu-central-1",
  credentials: { accessKeyId: process.env.AWS_ACCESS_KEY_ID, secretAccessKey: process.env.AWS_SECRET_ACCESS_KEY },
  maxAttempts: 1,
  requestHandler: { httpAgent: { keepAlive: true, maxSockets: 60 } },
});

const call = (Command, input) => sqs.send(new Command(input));
const create = async (QueueName, Attributes) => (await call(CreateQueueCommand, { QueueName, Attributes })).QueueUrl;
const attributes = async (QueueUrl) =>
  (await call(GetQueueAttributesCommand, { QueueUrl, AttributeNames: ["All"] })).Attributes;
const receive = async (QueueUrl, more) =>
  (await call(ReceiveMessageCommand, { QueueUrl, MaxNumberOfMessages: 10, ...more })).Messages ?? [];
const range = (count) => Array.from({ length: count }, (_, at) => at);

/** Workers that fail now and then: every job is done, and the one that always fails is a dead letter. */
async function work_queue() {
  const dead = await create("js-dead");
  const deadLetterTargetArn = (await attributes(dead)).QueueArn;
  const jobs = await create("js-jobs", {
    VisibilityTimeout: "60", // nothing lapses because this machine is busy
    RedrivePolicy: JSON.stringify({ deadLetterTargetArn, maxReceiveCount: 3 }),
  });
  const text = "grüße <&>\r\n😀";
  for (const ten of range(5)) {
    const Entries = range(10).map((at) => ({
      Id: `${at}`,
      MessageBody: `job ${ten * 10 + at}`,
      MessageAttributes: {
        number: { DataType: "Number.int", StringValue: `${ten * 10 + at}` },
        bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(at, 0, 255) },
        text: { DataType: "String", StringValue: text },
      },
    }));
    assert.equal((await call(SendMessageBatchCommand, { QueueUrl: jobs, Entries })).Successful.length, 10);
  }
  const done = new Set();
  const worker = async (which) => {
    for (let turn = 0; done.size < 49; turn += 1) {
      const wanted = { MaxNumberOfMessages: 2, WaitTimeSeconds: 1, MessageAttributeNames: ["All"], AttributeNames: ["All"] };
      for (const message of await receive(jobs, wanted)) {
        const known = message.MessageAttributes;
        assert.equal(message.Body, `job ${known.number.StringValue}`);
        assert.deepEqual([...known.bytes.BinaryValue], [known.number.StringValue % 10, 0, 255]);
        assert.equal(known.text.StringValue, text);
        const job = { QueueUrl: jobs, ReceiptHandle: message.ReceiptHandle };
        if (message.Body === "job 13") {
          await call(ChangeMessageVisibilityCommand, { ...job, VisibilityTimeout: 1 }); // dies with it
          continue;
        }
        if (message.Attributes.ApproximateReceiveCount === "1" && (turn + which) % 3 === 0) {
          await call(ChangeMessageVisibilityCommand, { ...job, VisibilityTimeout: 0 });
          continue;
        }
        await call(DeleteMessageCommand, job);
        done.add(message.Body);
      }
    }
  };
  await Promise.all(range(4).map(worker));
  let letters = [];
  for (let attempt = 0; letters.length === 0 && attempt < ATTEMPTS; attempt += 1) {
    await receive(jobs, { WaitTimeSeconds: 1, VisibilityTimeout: 0 });
    letters = await receive(dead);
  }
  assert.deepEqual(letters.map((letter) => letter.Body), ["job 13"]);
  const left = await attributes(jobs);
  assert.equal(left.ApproximateNumberOfMessages + left.ApproximateNumberOfMessagesNotVisible, "00");
}

/** Fifty receives wait, and each gets one of fifty messages; then there is nothing to be had. */
async function long_polling() {
  const queue = await create("js-polled", { VisibilityTimeout: "3600" });
  const poll = async () => {
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      const [message] = await receive(queue, { MaxNumberOfMessages: 1, WaitTimeSeconds: 20 });
      if (message) return Number(message.Body);
    }
    throw new Error("nothing came");
  };
  const polls = range(50).map(poll);
  for (const ten of range(5)) {
    const Entries = range(10).map((at) => ({ Id: `${at}`, MessageBody: `${ten * 10 + at}` }));
    await call(SendMessageBatchCommand, { QueueUrl: queue, Entries });
  }
  assert.deepEqual((await Promise.all(polls)).sort((one, other) => one - other), range(50));
  assert.deepEqual(await receive(queue, { WaitTimeSeconds: 1 }), []);
}

/** Entries that are bad fail by themselves, and a batch that is none is refused by an exception of its own. */
async function batches() {
  const QueueUrl = await create("js-batches", { MaximumMessageSize: "1024" });
  const sent = await call(SendMessageBatchCommand, {
    QueueUrl,
    Entries: [
      { Id: "good", MessageBody: "good" },
      { Id: "long", MessageBody: "x".repeat(1025) },
      { Id: "control", MessageBody: "\u0002" },
      { Id: "late", MessageBody: "late", DelaySeconds: 901 },
    ],
  });
  assert.deepEqual(sent.Successful.map((one) => one.Id), ["good"]);
  assert.deepEqual(
    sent.Failed.map((one) => [one.Id, one.Code, one.SenderFault]).sort(),
    [
      ["control", "InvalidMessageContents", true],
      ["late", "InvalidParameterValue", true],
      ["long", "InvalidParameterValue", true],
    ],
  );
  const [message] = await receive(QueueUrl);
  const deleted = await call(DeleteMessageBatchCommand, {
    QueueUrl,
    Entries: [{ Id: "a", ReceiptHandle: message.ReceiptHandle }, { Id: "b", ReceiptHandle: "none" }],
  });
  assert.deepEqual(deleted.Successful.map((one) => one.Id), ["a"]);
  assert.deepEqual(deleted.Failed.map((one) => [one.Id, one.Code]), [["b", "ReceiptHandleIsInvalid"]]);
  const refused = (Entries, exception) => assert.rejects(call(SendMessageBatchCommand, { QueueUrl, Entries }), exception);
  await refused([], EmptyBatchRequest);
  await refused(range(11).map((at) => ({ Id: `${at}`, MessageBody: "m" })), TooManyEntriesInBatchRequest);
  await refused([{ Id: "a b", MessageBody: "m" }], InvalidBatchEntryId);
  const large = range(2).map((at) => ({ Id: `${at}`, MessageBody: "x".repeat(600 << 10) }));
  const roomy = await create("js-roomy");
  await assert.rejects(call(SendMessageBatchCommand, { QueueUrl: roomy, Entries: large }), BatchRequestTooLong);
  const elsewhere = call(SendMessageCommand, { QueueUrl: `${QueueUrl}-none`, MessageBody: "m" });
  await assert.rejects(elsewhere, QueueDoesNotExist);
}

const scenarios = { work_queue, long_polling, batches };
for (const name of names) {
  console.log(name);
  await scenarios[name]();
}
sqs.destroy();
