//! Configurations: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

messages! {
    DescribeConfigsRequest {
        resources: Vec<DescribeConfigsResource>,
        include_synonyms: bool,
        include_documentation: bool [3..],
    }
    DescribeConfigsResource {
        resource_type: i8,
        resource_name: String,
        configuration_keys: Option<Vec<String>>,
    }
    DescribeConfigsResponse {
        throttle_time_ms: i32,
        results: Vec<DescribeConfigsResult>,
    }
    DescribeConfigsResult {
        error_code: i16,
        error_message: Option<String>,
        resource_type: i8,
        resource_name: String,
        configs: Vec<DescribeConfigsResourceResult>,
    }
    DescribeConfigsResourceResult {
        name: String,
        value: Option<String>,
        read_only: bool,
        config_source: i8 = -1,
        is_sensitive: bool,
        synonyms: Vec<DescribeConfigsSynonym>,
        config_type: i8 [3..],
        documentation: Option<String> [3..],
    }
    DescribeConfigsSynonym {
        name: String,
        value: Option<String>,
        source: i8,
    }
    AlterConfigsRequest {
        resources: Vec<AlterConfigsRequestResource>,
        validate_only: bool,
    }
    AlterConfigsRequestResource {
        resource_type: i8,
        resource_name: String,
        configs: Vec<AlterConfigsRequestAlterableConfig>,
    }
    AlterConfigsRequestAlterableConfig {
        name: String,
        value: Option<String>,
    }
    AlterConfigsResponse {
        throttle_time_ms: i32,
        responses: Vec<AlterConfigsResponseResourceResponse>,
    }
    AlterConfigsResponseResourceResponse {
        error_code: i16,
        error_message: Option<String>,
        resource_type: i8,
        resource_name: String,
    }
    IncrementalAlterConfigsRequest {
        resources: Vec<IncrementalAlterConfigsRequestAlterConfigsResource>,
        validate_only: bool,
    }
    IncrementalAlterConfigsRequestAlterConfigsResource {
        resource_type: i8,
        resource_name: String,
        configs: Vec<IncrementalAlterConfigsRequestAlterableConfig>,
    }
    IncrementalAlterConfigsRequestAlterableConfig {
        name: String,
        config_operation: i8,
        value: Option<String>,
    }
    IncrementalAlterConfigsResponse {
        throttle_time_ms: i32,
        responses: Vec<IncrementalAlterConfigsResponseAlterConfigsResourceResponse>,
    }
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse {
        error_code: i16,
        error_message: Option<String>,
        resource_type: i8,
        resource_name: String,
    }
    ListConfigResourcesRequest {
        resource_types: Vec<i8> [1..],
    }
    ListConfigResourcesResponse {
        throttle_time_ms: i32,
        error_code: i16,
        config_resources: Vec<ConfigResource>,
    }
    ConfigResource {
        resource_name: String,
        resource_type: i8 [1..] = 16,
    }
}
