"""What people do with SQS, through boto3: `python scenarios.py ENDPOINT SCENARIO`, with its keys in the environment.

Run by sqs_clients.rs with a new boto3, which speaks JSON, and with an old one, which speaks Query. Both verify the MD5 of
every message and raise if one is wrong. A scenario that does not hold raises.
"""

import base64
import collections
import contextlib
import datetime
import json
import os
import random
import sys
import threading
import types
import urllib.error
import urllib.request
from unittest import mock

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.config
import botocore.credentials
from botocore.exceptions import ClientError

ENDPOINT = sys.argv[1]
ATTEMPTS = 200


def client(**keys):
    config = botocore.config.Config(
        region_name="eu-central-1", retries={"total_max_attempts": 1}, max_pool_connections=60, read_timeout=60
    )
    return boto3.client("sqs", endpoint_url=ENDPOINT, config=config, **keys)


SQS = client()


def create(name, **attributes):
    return SQS.create_queue(QueueName=name, Attributes={key: str(value) for key, value in attributes.items()})["QueueUrl"]


def arn(url):
    return SQS.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def counts(url):
    names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
    attributes = SQS.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(attributes[name]) for name in names]


def receive(url, **more):
    return SQS.receive_message(QueueUrl=url, **{"MaxNumberOfMessages": 10, **more}).get("Messages", [])


def delete(url, messages):
    entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(messages)]
    answer = SQS.delete_message_batch(QueueUrl=url, Entries=entries)
    assert "Failed" not in answer or not answer["Failed"], answer


def refused(code, call, **parameters):
    try:
        call(**parameters)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error.response
        return error
    raise AssertionError(f"{code} was expected")


def in_threads(count, run):
    failures = []

    def guarded(number):
        try:
            run(number)
        except BaseException as error:  # noqa: B902: told to the main thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def work_queue():
    """Workers of which each fails now and then: every job is done, and those that always fail are dead letters."""
    dead = create("dead", VisibilityTimeout=3600)
    policy = json.dumps({"deadLetterTargetArn": arn(dead), "maxReceiveCount": 3})
    # Nothing lapses because this machine is busy; workers that die leave their message a second.
    jobs = create("jobs", VisibilityTimeout=60, RedrivePolicy=policy)
    for first in range(0, 100, 10):
        entries = [
            {
                "Id": str(number),
                "MessageBody": f"job {number}",
                "MessageAttributes": {
                    "number": {"DataType": "Number", "StringValue": str(number)},
                    "bytes": {"DataType": "Binary.raw", "BinaryValue": bytes([number, 0, 255])},
                    "text": {"DataType": "String", "StringValue": "grüße <&>\r\n"},
                },
            }
            for number in range(first, first + 10)
        ]
        answer = SQS.send_message_batch(QueueUrl=jobs, Entries=entries)
        assert len(answer["Successful"]) == 10, answer
    poison = {f"job {number}" for number in (13, 77)}
    done, lock = collections.Counter(), threading.Lock()

    def worker(number):
        sqs, chance = client(), random.Random(number)
        while True:
            with lock:
                if len(done) == 98:
                    return
            messages = sqs.receive_message(
                QueueUrl=jobs, MaxNumberOfMessages=3, WaitTimeSeconds=1, MessageAttributeNames=["All"],
                AttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
            ).get("Messages", [])
            for message in messages:
                attributes = message["MessageAttributes"]
                job = int(attributes["number"]["StringValue"])
                assert attributes["bytes"]["BinaryValue"] == bytes([job, 0, 255])
                assert attributes["text"]["StringValue"] == "grüße <&>\r\n"
                handle = {"QueueUrl": jobs, "ReceiptHandle": message["ReceiptHandle"]}
                first = message["Attributes"]["ApproximateReceiveCount"] == "1"
                if message["Body"] in poison or (first and chance.random() < 0.3):
                    died = message["Body"] in poison or chance.random() < 0.5
                    sqs.change_message_visibility(**handle, VisibilityTimeout=1 if died else 0)
                    continue
                sqs.delete_message(**handle)
                with lock:
                    done[message["Body"]] += 1

    in_threads(4, worker)
    assert len(done) == 98, len(done)
    found = []
    for _ in range(ATTEMPTS):
        receive(jobs, WaitTimeSeconds=1, VisibilityTimeout=0)
        found += receive(dead, AttributeNames=["All"])
        if len(found) == 2:
            break
    assert {message["Body"] for message in found} == poison, found
    assert all(message["Attributes"]["DeadLetterQueueSourceArn"] == arn(jobs) for message in found)
    delete(dead, found)
    assert counts(jobs) == [0, 0, 0] and counts(dead) == [0, 0, 0]


def redrive():
    """Dead letters are brought back to where they came from."""
    dead, waiting = create("letters"), create("waiting")  # where nothing comes
    policy = json.dumps({"deadLetterTargetArn": arn(dead), "maxReceiveCount": 1})
    source = create("source", VisibilityTimeout=0, RedrivePolicy=policy)
    assert SQS.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [source]
    for number in range(20):
        SQS.send_message(QueueUrl=source, MessageBody=str(number))
    for _ in range(ATTEMPTS):
        receive(source)
        if counts(dead)[0] == 20:
            break
    assert counts(dead)[0] == 20 and counts(source)[0] == 0
    if hasattr(SQS, "start_message_move_task"):
        SQS.start_message_move_task(SourceArn=arn(dead))
        for _ in range(ATTEMPTS):
            task = SQS.list_message_move_tasks(SourceArn=arn(dead))["Results"][0]
            if task["Status"] != "RUNNING":
                break
            receive(waiting, WaitTimeSeconds=1)
        assert task["Status"] == "COMPLETED" and task["ApproximateNumberOfMessagesMoved"] == 20, task
        assert counts(source)[0] == 20
        refused("InvalidParameterValue", SQS.start_message_move_task, SourceArn=arn(source))
        unknown = json.dumps({"taskId": "10f57157-fc38-4da9-a113-4de7e12d05aa", "sourceArn": arn(dead)}).encode()
        unknown = base64.b64encode(unknown).decode()
        refused("ResourceNotFoundException", SQS.cancel_message_move_task, TaskHandle=unknown)
        refused("InvalidParameterValue", SQS.cancel_message_move_task, TaskHandle="eyJ0YXNrSWQiOjk5fQ==")


def fifo():
    """Several receivers: each group stays in order."""
    queue = create("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true", VisibilityTimeout=60)
    sequences = []
    for number in range(20):
        for group in "abcde":
            sent = SQS.send_message(QueueUrl=queue, MessageBody=f"{group}{number}", MessageGroupId=group)
            sequences.append(sent["SequenceNumber"])
    assert sequences == sorted(sequences) and len(set(sequences)) == 100
    again = SQS.send_message(QueueUrl=queue, MessageBody="a0", MessageGroupId="a")
    assert again["SequenceNumber"] == sequences[0]
    seen, lock = collections.defaultdict(list), threading.Lock()

    def receiver(number):
        sqs = client()
        while True:
            with lock:
                if sum(map(len, seen.values())) == 100:
                    return
            messages = sqs.receive_message(
                QueueUrl=queue, MaxNumberOfMessages=4, WaitTimeSeconds=1, AttributeNames=["MessageGroupId"]
            ).get("Messages", [])
            # Nobody else can have messages of these groups before these are deleted.
            with lock:
                for message in messages:
                    seen[message["Attributes"]["MessageGroupId"]].append(message["Body"])
            for message in messages:
                sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])

    in_threads(3, receiver)
    assert seen == {group: [f"{group}{number}" for number in range(20)] for group in "abcde"}, seen

    # What is behind an invisible message stays hidden; a receive can be asked for again.
    for number in range(4):
        SQS.send_message(QueueUrl=queue, MessageBody=f"x{number}", MessageGroupId="x")
    first = receive(queue, MaxNumberOfMessages=2, ReceiveRequestAttemptId="attempt")
    again = receive(queue, MaxNumberOfMessages=2, ReceiveRequestAttemptId="attempt")
    assert [one["Body"] for one in first] == [one["Body"] for one in again] == ["x0", "x1"]
    assert receive(queue) == []
    SQS.change_message_visibility(QueueUrl=queue, ReceiptHandle=first[1]["ReceiptHandle"], VisibilityTimeout=0)
    assert receive(queue) == []
    SQS.delete_message(QueueUrl=queue, ReceiptHandle=first[0]["ReceiptHandle"])
    assert [one["Body"] for one in receive(queue)] == ["x1", "x2", "x3"]
    refused("InvalidParameterValue", SQS.delete_message, QueueUrl=queue, ReceiptHandle=first[1]["ReceiptHandle"])

    # Ids by group.
    mode = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    fast = create("fast.fifo", FifoQueue="true", **mode)
    for group in "ab":
        for _ in range(2):
            SQS.send_message(QueueUrl=fast, MessageBody="m", MessageGroupId=group, MessageDeduplicationId="one")
    assert counts(fast)[0] == 2


def long_polling():
    """Fifty clients wait, and each gets one of fifty messages; then they wait for nothing."""
    queue = create("polled", VisibilityTimeout=3600)
    got, lock = [], threading.Lock()
    ready = threading.Barrier(51)

    def poller(number):
        sqs = client()
        ready.wait()
        for _ in range(ATTEMPTS):
            messages = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20).get("Messages", [])
            if messages:
                with lock:
                    got.extend(message["Body"] for message in messages)
                return

    threads = [threading.Thread(target=poller, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    ready.wait()
    for first in range(0, 50, 10):
        entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(first, first + 10)]
        SQS.send_message_batch(QueueUrl=queue, Entries=entries)
    for thread in threads:
        thread.join()
    assert sorted(got, key=int) == [str(number) for number in range(50)], got
    # One that becomes visible wakes as one that is sent does.
    SQS.send_message(QueueUrl=queue, MessageBody="late", DelaySeconds=1)
    assert [one["Body"] for one in receive(queue, WaitTimeSeconds=20)] == ["late"]
    assert receive(queue, WaitTimeSeconds=1) == []


def batches():
    """Entries that are bad fail by themselves, and so does a batch that is none."""
    queue = create("batches", MaximumMessageSize=1024)
    entries = [
        {"Id": "good", "MessageBody": "good"},
        {"Id": "long", "MessageBody": "x" * 1025},
        {"Id": "control", "MessageBody": "\x02"},
        {"Id": "late", "MessageBody": "late", "DelaySeconds": 901},
        {"Id": "attribute", "MessageBody": "m", "MessageAttributes": {"AWS.x": {"DataType": "String", "StringValue": "v"}}},
        {"Id": "also-good_1", "MessageBody": "also good"},
    ]
    answer = SQS.send_message_batch(QueueUrl=queue, Entries=entries)
    assert {one["Id"] for one in answer["Successful"]} == {"good", "also-good_1"}, answer
    failed = {one["Id"]: (one["Code"], one["SenderFault"]) for one in answer["Failed"]}
    assert failed == {
        "long": ("InvalidParameterValue", True),
        "control": ("InvalidMessageContents", True),
        "late": ("InvalidParameterValue", True),
        "attribute": ("InvalidParameterValue", True),
    }, failed
    messages = receive(queue)
    assert [one["Body"] for one in messages] == ["good", "also good"]
    entries = [
        {"Id": "a", "ReceiptHandle": messages[0]["ReceiptHandle"], "VisibilityTimeout": 43201},
        {"Id": "b", "ReceiptHandle": messages[1]["ReceiptHandle"], "VisibilityTimeout": 0},
    ]
    answer = SQS.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert [one["Id"] for one in answer["Successful"]] == ["b"]
    assert [one["Code"] for one in answer["Failed"]] == ["InvalidParameterValue"], answer
    entries = [{"Id": "a", "ReceiptHandle": messages[0]["ReceiptHandle"]}, {"Id": "b", "ReceiptHandle": "none"}]
    answer = SQS.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert [one["Id"] for one in answer["Successful"]] == ["a"]
    assert [one["Code"] for one in answer["Failed"]] == ["ReceiptHandleIsInvalid"], answer
    prefix = "AWS.SimpleQueueService."
    one = {"Id": "a", "MessageBody": "m"}
    refused(f"{prefix}TooManyEntriesInBatchRequest", SQS.send_message_batch, QueueUrl=queue,
            Entries=[{**one, "Id": str(number)} for number in range(11)])
    refused(f"{prefix}BatchEntryIdsNotDistinct", SQS.send_message_batch, QueueUrl=queue, Entries=[one, one])
    refused(f"{prefix}InvalidBatchEntryId", SQS.send_message_batch, QueueUrl=queue, Entries=[{**one, "Id": "a b"}])


def administration():
    """Everything else: listing, attributes, tags, permissions, purging, deleting, and what is refused."""
    names = [f"admin-{number}" for number in range(5)]
    urls = [create(name, DelaySeconds=number) for number, name in enumerate(names)]
    assert create("admin-3", DelaySeconds=3) == urls[3]
    refused("QueueAlreadyExists", create, name="admin-3", DelaySeconds=4)
    pages = SQS.get_paginator("list_queues").paginate(QueueNamePrefix="admin-", PaginationConfig={"PageSize": 2})
    assert [url for page in pages for url in page["QueueUrls"]] == urls
    queue = urls[0]
    assert SQS.get_queue_url(QueueName="admin-0")["QueueUrl"] == queue
    SQS.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "5", "ReceiveMessageWaitTimeSeconds": "1"})
    attributes = SQS.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert attributes["VisibilityTimeout"] == "5" and attributes["QueueArn"].endswith(":000000000000:admin-0"), attributes
    SQS.tag_queue(QueueUrl=queue, Tags={"team": "one", "tailwater-order-hint": "3"})
    SQS.untag_queue(QueueUrl=queue, TagKeys=["team"])
    assert SQS.list_queue_tags(QueueUrl=queue)["Tags"] == {"tailwater-order-hint": "3"}
    SQS.add_permission(QueueUrl=queue, Label="l", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    SQS.remove_permission(QueueUrl=queue, Label="l")
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    sent = SQS.send_message(QueueUrl=queue, MessageBody="m", MessageSystemAttributes=trace)
    assert sent["MD5OfMessageSystemAttributes"]
    message = receive(queue, AttributeNames=["All"])[0]
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["AWSTraceHeader"].startswith("Root=")
    assert message["Attributes"]["SenderId"] == "000000000000"
    SQS.purge_queue(QueueUrl=queue)
    refused("AWS.SimpleQueueService.PurgeQueueInProgress", SQS.purge_queue, QueueUrl=queue)
    assert counts(queue) == [0, 0, 0]
    SQS.delete_queue(QueueUrl=queue)
    error = refused("AWS.SimpleQueueService.NonExistentQueue", SQS.get_queue_url, QueueName="admin-0")
    assert isinstance(error, SQS.exceptions.QueueDoesNotExist), type(error)
    refused("AWS.SimpleQueueService.QueueDeletedRecently", create, name="admin-0")
    refused("InvalidAttributeName", SQS.get_queue_attributes, QueueUrl=urls[1], AttributeNames=["None"])
    sts = boto3.client("sts", endpoint_url=ENDPOINT, region_name="eu-central-1")
    assert sts.get_caller_identity()["Account"] == "000000000000"


def keys():
    """Who signs with another secret, or a key that is not known, is refused."""
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    wrong = client(aws_access_key_id=key, aws_secret_access_key="another")
    refused("SignatureDoesNotMatch", wrong.list_queues)
    unknown = client(aws_access_key_id="another", aws_secret_access_key=secret)
    refused("InvalidClientTokenId", unknown.list_queues)


def signed(auth, url):
    """The URL with a signature in it."""
    credentials = botocore.credentials.Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    request = botocore.awsrequest.AWSRequest(method="GET", url=url)
    botocore.auth.SigV4QueryAuth(credentials, "sqs", "eu-central-1", **auth).add_auth(request)
    return request.url


def get(url):
    """Without anything that signs: the status, and what is said."""
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def presigned():
    """A URL that was signed is good for whoever has it, for so long, and for what it says."""
    queue = create("presigned")
    send = f"{queue}?Action=SendMessage&MessageBody=from%20a%20link"
    link = signed({"expires": 60}, send)
    status, said = get(link)
    assert status == 200 and "<MD5OfMessageBody>" in said, said
    assert [message["Body"] for message in receive(queue)] == ["from a link"]
    status, said = get(link.replace("from%20a%20link", "something%20else"))
    assert status == 403 and "SignatureDoesNotMatch" in said, (status, said)
    with clock(-120):
        late = signed({"expires": 60}, send)
    status, said = get(late)
    assert status == 400 and "RequestExpired" in said and "node" in said, (status, said)
    status, said = get(send)
    assert status == 403 and "MissingAuthenticationToken" in said, said


@contextlib.contextmanager
def clock(seconds):
    """Signs as a host does whose clock is so many seconds ahead."""
    moment = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) + datetime.timedelta(seconds=seconds)
    auth = botocore.auth
    if hasattr(auth, "get_current_datetime"):
        patched = mock.patch.object(auth, "get_current_datetime", lambda *_, **__: moment)
    else:
        fake = type("Clock", (datetime.datetime,), {"utcnow": classmethod(lambda _: moment)})
        patched = mock.patch.object(auth, "datetime", types.SimpleNamespace(datetime=fake))
    with patched:
        yield


def clocks():
    """Clocks may differ by a quarter of an hour; beyond that it is said what the time is."""
    for minutes in (-14, 14):
        with clock(60 * minutes):
            SQS.list_queues()
    for minutes in (-16, 16):
        with clock(60 * minutes):
            error = refused("RequestExpired", SQS.list_queues)
        said = error.response["Error"]["Message"]
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H")
        assert "900 seconds" in said and now[:8] in said and "clock" in said, said


def test_double():
    """What suites do that run against an emulator: any key, names that are used again at once, its addresses."""
    anybody = client(aws_access_key_id="test", aws_secret_access_key="test")
    for _ in range(3):
        url = anybody.create_queue(QueueName="again")["QueueUrl"]
        assert url.split("/")[3] == "000000000000", url
        assert arn(url) == "arn:aws:sqs:us-east-1:000000000000:again", arn(url)
        # As ElasticMQ writes it.
        other = url.replace("/000000000000/", "/queue/")
        anybody.send_message(QueueUrl=other, MessageBody="purged")
        for _ in range(3):
            anybody.purge_queue(QueueUrl=url)
        assert counts(url) == [0, 0, 0], counts(url)
        anybody.send_message(QueueUrl=url, MessageBody="kept")
        assert [message["Body"] for message in receive(other)] == ["kept"]
        anybody.delete_queue(QueueUrl=url)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(name, flush=True)
        globals()[name]()
