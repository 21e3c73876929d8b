//! Why a request is not done, as Amazon's clients know it: one code for each, with its name in either protocol.

use tailwater_queue::QueueError;

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Not allowed.
    AccessDenied,
    /// Two entries of a batch have the same id.
    BatchEntryIdsNotDistinct,
    /// A batch has too many bytes.
    BatchRequestTooLong,
    /// A batch has no entries.
    EmptyBatchRequest,
    /// The signature's form is wrong.
    IncompleteSignature,
    /// Something failed here.
    InternalFailure,
    /// There is no such action.
    InvalidAction,
    /// The account of a queue's URL is none.
    InvalidAddress,
    /// There is no such attribute.
    InvalidAttributeName,
    /// An attribute can't have that value.
    InvalidAttributeValue,
    /// An entry's id has characters that it can't have.
    InvalidBatchEntryId,
    /// The access key is not known.
    InvalidClientTokenId,
    /// A message has characters that it can't have.
    InvalidMessageContents,
    /// A parameter can't have that value.
    InvalidParameterValue,
    /// The request is not signed in the way that is asked for.
    InvalidSecurity,
    /// The request can't be read.
    Malformed,
    /// The message is visible.
    MessageNotInflight,
    /// The request is not signed.
    MissingAuthenticationToken,
    /// A parameter is missing.
    MissingParameter,
    /// The request names no action.
    NoAction,
    /// More than there may be.
    OverLimit,
    /// The queue was purged a moment ago.
    PurgeQueueInProgress,
    /// A queue of that name was deleted a moment ago.
    QueueDeletedRecently,
    /// There is no such queue.
    QueueDoesNotExist,
    /// A queue of that name is there, with other attributes.
    QueueNameExists,
    /// The receipt was not given out here.
    ReceiptHandleIsInvalid,
    /// The signature's time is too far from ours.
    RequestExpired,
    /// More requests than the account may make.
    RequestThrottled,
    /// There is no such task.
    ResourceNotFound,
    /// The signature is another.
    SignatureDoesNotMatch,
    /// Try again later.
    ServiceUnavailable,
    /// A batch has too many entries.
    TooManyEntriesInBatchRequest,
    /// Not for this kind of queue.
    UnsupportedOperation,
}

/// A code's names: its type in the JSON protocol, its code in the Query protocol, and the status of HTTP.
struct ErrorNames(&'static str, &'static str, u16);

/// What the types of errors begin with that only SQS has.
const SQS_TYPES: &str = "com.amazonaws.sqs#";

/// The names of an error that SQS has, of one that all of Amazon's services have, and of one of SQS's whose code in the
/// Query protocol is its type behind `AWS.SimpleQueueService.`.
macro_rules! names {
    (sqs $type:literal, $code:expr, $status:literal) => {
        ErrorNames(concat!("com.amazonaws.sqs#", $type), $code, $status)
    };
    (coral $type:literal, $code:literal, $status:literal) => {
        ErrorNames(concat!("com.amazon.coral.service#", $type), $code, $status)
    };
    (both $type:literal, $status:literal) => {
        names!(sqs $type, concat!("AWS.SimpleQueueService.", $type), $status)
    };
}

impl Code {
    fn names(self) -> ErrorNames {
        match self {
            Code::AccessDenied => names!(coral "AccessDeniedException", "AccessDenied", 403),
            Code::BatchEntryIdsNotDistinct => names!(both "BatchEntryIdsNotDistinct", 400),
            Code::BatchRequestTooLong => names!(both "BatchRequestTooLong", 400),
            Code::EmptyBatchRequest => names!(both "EmptyBatchRequest", 400),
            Code::IncompleteSignature => {
                names!(coral "IncompleteSignatureException", "IncompleteSignature", 400)
            }
            Code::InternalFailure => names!(coral "InternalFailure", "InternalFailure", 500),
            Code::InvalidAction => names!(coral "UnknownOperationException", "InvalidAction", 400),
            Code::InvalidAddress => names!(sqs "InvalidAddress", "InvalidAddress", 404),
            Code::InvalidAttributeName => names!(sqs "InvalidAttributeName", "InvalidAttributeName", 400),
            Code::InvalidAttributeValue => names!(sqs "InvalidAttributeValue", "InvalidAttributeValue", 400),
            Code::InvalidBatchEntryId => names!(both "InvalidBatchEntryId", 400),
            Code::InvalidClientTokenId => {
                names!(coral "UnrecognizedClientException", "InvalidClientTokenId", 403)
            }
            Code::InvalidMessageContents => {
                names!(sqs "InvalidMessageContents", "InvalidMessageContents", 400)
            }
            Code::InvalidParameterValue => {
                names!(coral "InvalidParameterValueException", "InvalidParameterValue", 400)
            }
            Code::InvalidSecurity => names!(sqs "InvalidSecurity", "InvalidSecurity", 403),
            Code::Malformed => names!(coral "SerializationException", "MalformedInput", 400),
            Code::MessageNotInflight => names!(both "MessageNotInflight", 400),
            Code::MissingAuthenticationToken => {
                names!(coral "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
            }
            Code::MissingParameter => {
                names!(coral "MissingRequiredParameterException", "MissingParameter", 400)
            }
            Code::NoAction => names!(coral "UnknownOperationException", "UnknownOperationException", 404),
            Code::OverLimit => names!(sqs "OverLimit", "OverLimit", 403),
            Code::PurgeQueueInProgress => names!(both "PurgeQueueInProgress", 403),
            Code::QueueDeletedRecently => names!(both "QueueDeletedRecently", 400),
            Code::QueueDoesNotExist => {
                names!(sqs "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400)
            }
            Code::QueueNameExists => names!(sqs "QueueNameExists", "QueueAlreadyExists", 400),
            Code::ReceiptHandleIsInvalid => {
                names!(sqs "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 400)
            }
            Code::RequestExpired => names!(coral "RequestExpiredException", "RequestExpired", 400),
            Code::RequestThrottled => names!(sqs "RequestThrottled", "RequestThrottled", 403),
            Code::ResourceNotFound => {
                names!(sqs "ResourceNotFoundException", "ResourceNotFoundException", 404)
            }
            Code::SignatureDoesNotMatch => {
                names!(coral "InvalidSignatureException", "SignatureDoesNotMatch", 403)
            }
            Code::ServiceUnavailable => {
                names!(coral "ServiceUnavailableException", "ServiceUnavailable", 503)
            }
            Code::TooManyEntriesInBatchRequest => names!(both "TooManyEntriesInBatchRequest", 400),
            Code::UnsupportedOperation => names!(both "UnsupportedOperation", 400),
        }
    }

    /// `__type` in the JSON protocol.
    pub fn json_type(self) -> &'static str {
        self.names().0
    }

    /// `Code` in the Query protocol.
    pub fn query_code(self) -> &'static str {
        self.names().1
    }

    /// The status of HTTP in the Query protocol.
    pub fn status(self) -> u16 {
        self.names().2
    }

    /// The status of HTTP in the JSON protocol: SQS's own errors have theirs in both, and those that all of Amazon's
    /// services have are 400 there where the client can do something about it.
    pub fn json_status(self) -> u16 {
        let ErrorNames(json_type, _, status) = self.names();
        if self.is_sender() && !json_type.starts_with(SQS_TYPES) { 400 } else { status }
    }

    /// Whether the client can do something about it.
    pub fn is_sender(self) -> bool {
        self.status() < 500
    }
}

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorRefusal {
    /// As a code.
    pub code: Code,
    /// In words.
    pub message: String,
}

impl ErrorRefusal {
    /// A refusal.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A parameter can't have that value.
    pub fn value(value: impl std::fmt::Display, parameter: &str, reason: &str) -> Self {
        let message = format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}");
        Self::new(Code::InvalidParameterValue, message)
    }

    /// A parameter is missing.
    pub fn missing(parameter: &str) -> Self {
        Self::new(Code::MissingParameter, format!("The request must contain the parameter {parameter}."))
    }

    /// There is no such queue.
    pub fn no_queue() -> Self {
        Self::new(Code::QueueDoesNotExist, "The specified queue does not exist.")
    }
}

impl From<QueueError> for ErrorRefusal {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::NoQueue => Self::no_queue(),
            QueueError::Exists(_) => {
                Self::new(Code::QueueNameExists, "A queue already exists with the same name.")
            }
            QueueError::DeletedRecently => Self::new(
                Code::QueueDeletedRecently,
                "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
            ),
            QueueError::PurgedRecently => Self::new(
                Code::PurgeQueueInProgress,
                "Only one PurgeQueue operation on a queue is allowed every 60 seconds.",
            ),
            QueueError::TooManyInFlight => {
                Self::new(Code::OverLimit, "Too many messages in flight: the limit is 120000.")
            }
            QueueError::TaskRuns => Self::new(
                Code::InvalidParameterValue,
                "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
            ),
            QueueError::NoTask => Self::new(Code::ResourceNotFound, "Task does not exist."),
            QueueError::Unsupported(why) => Self::new(Code::UnsupportedOperation, why),
            QueueError::Overloaded(why) => Self::new(Code::ServiceUnavailable, why),
            QueueError::Unavailable(why) => Self::new(Code::ServiceUnavailable, why),
            QueueError::Closed => Self::new(Code::ServiceUnavailable, "The server is stopping."),
        }
    }
}
