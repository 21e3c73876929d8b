#!/usr/bin/env bash
# What people do with SQS in a shell, through the AWS command line: `aws.sh ENDPOINT SCENARIO...`, with `aws` in the PATH and
# its keys in the environment. It ends at the first thing that does not hold.
set -euo pipefail

export AWS_DEFAULT_REGION=eu-central-1 AWS_MAX_ATTEMPTS=1
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_PAGER='' AWS_DEFAULT_OUTPUT=text
# The first call compiles what all of them need.
unset PYTHONDONTWRITEBYTECODE

endpoint=$1
sqs() { aws sqs --endpoint-url "$endpoint" "$@"; }

# is WHAT EXPECTED FOUND
is() {
    [ "$2" = "$3" ] || { echo "$1: expected $2, found $3" >&2 && exit 1; }
}

# refused CODE ARGUMENT...: that the command line is told so.
refused() {
    local code=$1 said
    shift
    ! said=$(sqs "$@" 2>&1) || { echo "$*: done, where $code was expected" >&2 && exit 1; }
    case "$said" in *"($code)"*) ;; *) echo "$*: $said" >&2 && exit 1 ;; esac
}

attribute() { sqs get-queue-attributes --queue-url "$1" --attribute-names "$2" --query "Attributes.$2"; }

# Entries that are bad fail by themselves, and a batch that is none is refused.
batches() {
    local queue entries receipt
    queue=$(sqs create-queue --queue-name cli-batches --attributes MaximumMessageSize=1024 --query QueueUrl)
    entries=$(printf '[{"Id":"good","MessageBody":"grüße"},{"Id":"late","MessageBody":"m","DelaySeconds":901},{"Id":"long","MessageBody":"%01025d"}]' 0)
    is 'what was sent' $'good\nlate InvalidParameterValue True\nlong InvalidParameterValue True' "$(
        sqs send-message-batch --queue-url "$queue" --entries "$entries" \
            --query '[Successful[].[Id], Failed[].[Id, Code, to_string(SenderFault)]][]' | tr '\t' ' ' | sed 's/ true$/ True/')"
    receipt=$(sqs receive-message --queue-url "$queue" --max-number-of-messages 10 --query 'Messages[?Body==`grüße`].ReceiptHandle')
    entries="[{\"Id\":\"a\",\"ReceiptHandle\":\"$receipt\"},{\"Id\":\"b\",\"ReceiptHandle\":\"none\"}]"
    is 'what was deleted' 'a b ReceiptHandleIsInvalid' "$(
        sqs delete-message-batch --queue-url "$queue" --entries "$entries" \
            --query '[Successful[].Id, Failed[].[Id, Code][]][]' | tr '\t\n' '  ' | sed 's/ $//')"
    refused AWS.SimpleQueueService.BatchEntryIdsNotDistinct send-message-batch --queue-url "$queue" \
        --entries Id=a,MessageBody=1 Id=a,MessageBody=2
    is 'what is left' 0 "$(attribute "$queue" ApproximateNumberOfMessages)"
}

# What nobody can handle goes to the dead letters, and comes back from there.
redrive() {
    local dead arn source status
    dead=$(sqs create-queue --queue-name cli-letters --query QueueUrl)
    arn=$(attribute "$dead" QueueArn)
    source=$(sqs create-queue --queue-name cli-source --query QueueUrl --attributes \
        "{\"VisibilityTimeout\":\"0\",\"RedrivePolicy\":\"{\\\"deadLetterTargetArn\\\":\\\"$arn\\\",\\\"maxReceiveCount\\\":1}\"}")
    is 'what it is for' "$source" "$(sqs list-dead-letter-source-queues --queue-url "$dead" --query queueUrls)"
    sqs send-message --queue-url "$source" --message-body letter \
        --message-attributes 'n={DataType=Number,StringValue=7}' >/dev/null
    is 'the first receive' letter "$(sqs receive-message --queue-url "$source" --query 'Messages[].Body')"
    is 'the second' None "$(sqs receive-message --queue-url "$source" --query 'Messages[].Body')"
    is 'dead letters' 1 "$(attribute "$dead" ApproximateNumberOfMessages)"
    sqs start-message-move-task --source-arn "$arn" >/dev/null
    for _ in {1..60}; do
        status=$(sqs list-message-move-tasks --source-arn "$arn" --query 'Results[0].Status')
        [ "$status" = RUNNING ] || break
    done
    is 'the move' COMPLETED "$status"
    is 'what came back' $'letter\t7' "$(sqs receive-message --queue-url "$source" --wait-time-seconds 20 \
        --message-attribute-names All --query 'Messages[].[Body, MessageAttributes.n.StringValue]')"
    refused AWS.SimpleQueueService.NonExistentQueue get-queue-url --queue-name cli-none
}

# Who signs with another secret, or a key that is not known, is refused.
keys() {
    AWS_SECRET_ACCESS_KEY=another refused SignatureDoesNotMatch list-queues
    AWS_ACCESS_KEY_ID=another refused InvalidClientTokenId list-queues
}

for scenario in "${@:2}"; do
    echo "$scenario"
    "$scenario"
done
